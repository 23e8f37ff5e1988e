"""Places the steps of many sequences on replicas, so that the replica with the most rows has as few as possible.

A replica that takes rows of a sequence pays what it lacks of that sequence, its lag, in rows as well: one for each
token, or fewer if these can be copied. Whole sequences
are placed first, the largest first (longest processing time; Graham, 1969). If that leaves one replica with far more
than the others, trees are split: a bisection finds the smallest capacity with which all rows can be packed. A sequence
stays with its owner, the replica that lacks the fewest of its tokens, while there is room there; one that does not fit
anywhere whole is laid along several replicas, leaf after leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from lp.runner.runner import StepInput
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.partition import Leaves, Run, closure, leaves_of, runs
from parallel.runners.shares import Shares

# Trees are split if the largest load is larger than an even one by this part of it.
WORTH_SPLITTING = 1 / 8


class Placed(NamedTuple):
    """Where the rows of a batch are.

    where: for each step, the replica that takes all of it, or the leaves of each that takes a part. loads: rows of each
    replica, with its lags.
    """

    where: list[int | dict[int, Run]]
    loads: list[int]


class Forest:
    """The steps of a batch, as far as placing them goes.

    sizes: rows of each step's tree. owners: for each step, the replica with the smallest lag; -1 if all have the same.
    works: each step's rows at its owner. least: the largest load cannot be less.
    """

    def __init__(self, steps: Sequence[StepInput], numbers: Sequence[Sequence[int]], copy_cost: CopyCost = NO_COPIES):
        """numbers: for each step, how many of its sequence's first tokens each replica has computed."""
        self.steps = steps
        self.num_replicas = len(numbers[0])
        self.sizes = [len(step.tree) for step in steps]
        self.owners: list[int] = []
        self.works: list[int] = []
        self._numbers = numbers
        self._copy_cost = copy_cost
        for step, size, known in zip(steps, self.sizes, numbers, strict=True):
            lag = step.num_computed - (most := max(known))
            self.owners.append(known.index(most) if most > min(known) else -1)
            self.works.append(size + lag if lag > 0 else size)
        # The largest first; of equal ones, the first in the batch.
        self.order = sorted(range(len(steps)), key=self.works.__getitem__, reverse=True)
        self.least = -(-sum(self.works) // self.num_replicas)
        self._lags: dict[int, list[int]] = {}
        self._leaves: dict[int, Leaves] = {}

    def place(self) -> Placed:
        """The placement with the smallest largest load that was found."""
        best = self.place_whole(max(self.least, self.works[self.order[0]]))
        if (most := max(best.loads)) > self.least:
            if max((other := self.place_whole(0)).loads) < most:
                best = other
            best = self._split_where_it_pays(best)
        return best

    def place_whole(self, capacity: int) -> Placed:
        """No tree is split. A sequence stays with its owner up to a capacity, else it goes where it ends first."""
        loads = [0] * self.num_replicas
        where: list[int | dict[int, Run]] = [0] * len(self.steps)
        for number in self.order:
            owner, work = self.owners[number], self.works[number]
            if owner < 0 or loads[owner] + work > capacity:
                owner, ready = self._first_free(loads, number)
                work = ready - loads[owner] + self.sizes[number]
            loads[owner] += work
            where[number] = owner
        return Placed(where, loads)

    def _lags_of(self, number: int) -> list[int]:
        """Returns the rows that each replica pays for the tokens that it lacks for a step."""
        if number not in self._lags:
            self._lags[number] = self._copy_cost.lags(self.steps[number].num_computed, self._numbers[number])
        return self._lags[number]

    def _first_free(self, loads: list[int], number: int) -> tuple[int, int]:
        """The replica that has done its other rows and its lag first, of several the one with the smallest lag; and
        its rows until then."""
        owner = self.owners[number]
        if owner >= 0 and loads[owner] == min(loads):
            return owner, loads[owner] + self.works[number] - self.sizes[number]
        lags = self._lags_of(number)
        ready = list(map(add, loads, lags))
        first = min(ready)
        best = ready.index(first)
        if lags[best] and ready.count(first) > 1:
            best = min((lags[replica], replica) for replica, rows in enumerate(ready) if rows == first)[1]
        return best, first

    def _split_where_it_pays(self, whole: Placed) -> Placed:
        most = max(whole.loads)
        if (most - self.least) <= most * WORTH_SPLITTING or not self._can_be_relieved(whole):
            return whole
        best, smallest, largest = whole, self.least, most
        while smallest < largest:
            capacity = (smallest + largest) // 2
            packed = self._pack(capacity)
            if packed is None:
                smallest = capacity + 1
            else:
                best, largest = packed, max(packed.loads)
        return best

    def _can_be_relieved(self, whole: Placed) -> bool:
        """Whether another replica could take a path of a tree from a replica with the most rows, and gain by it."""
        most = max(whole.loads)
        for number, size in enumerate(self.sizes):
            owner = whole.where[number]
            if size > 1 and isinstance(owner, int) and whole.loads[owner] == most:
                ready = map(add, whole.loads, self._lags_of(number))
                if any(rows + 2 < most for replica, rows in enumerate(ready) if replica != owner):
                    return True
        return False

    def _pack(self, capacity: int) -> Placed | None:
        """Fills replicas up to a capacity; None if they cannot take all rows."""
        loads = [0] * self.num_replicas
        where: list[int | dict[int, Run]] = [0] * len(self.steps)
        for number in self.order:
            owner, size = self.owners[number], self.sizes[number]
            if owner < 0 or loads[owner] + self.works[number] > capacity:
                owner, _ = self._first_free(loads, number)
            ready = loads[owner] + self._lags_of(number)[owner]
            if ready + size <= capacity:
                loads[owner] = ready + size
                where[number] = owner
                continue
            taken = self._lay_along(number, loads, capacity)
            if taken is None:
                return None
            where[number] = taken
        return Placed(where, loads)

    def _lay_along(self, number: int, loads: list[int], capacity: int) -> dict[int, Run] | None:
        """Lays a tree's leaves along the replicas, those that are ready first in front; None if some have no place.

        loads: of the replicas; the rows are added to them.
        """
        if self.sizes[number] < 2:
            return None
        ready = list(map(add, loads, self._lags_of(number)))
        replicas = sorted(range(self.num_replicas), key=ready.__getitem__)
        found = runs(self._leaves_of(number), [capacity - ready[replica] for replica in replicas])
        if found is None:
            return None
        taken = {replica: run for replica, run in zip(replicas, found, strict=True) if run.leaves}
        for replica, run in taken.items():
            loads[replica] = ready[replica] + run.num_rows
        return taken

    def _leaves_of(self, number: int) -> Leaves:
        if number not in self._leaves:
            self._leaves[number] = leaves_of(self.steps[number].tree)
        return self._leaves[number]

    def shares(self, placed: Placed) -> list[Shares]:
        """What the replicas compute of each step."""
        return [
            Shares.whole(step, taken)
            if isinstance(taken, int)
            else Shares({replica: closure(step.tree, run.leaves) for replica, run in taken.items()})
            for step, taken in zip(self.steps, placed.where, strict=True)
        ]
