"""Which replica computes which rows of a batch: the ways that `parallel.mode` names.

Each is a function of what all ranks know equally: the batch, its trees, and how much of each sequence every replica has
computed. No clock decides, so all ranks decide alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lp.runner.runner import StepInput
from parallel.runners.alone import share_tree
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.followers import catch_up
from parallel.runners.forest import Forest
from parallel.runners.prefill_split import split_prefill
from parallel.runners.shares import Shares

# For each step of a batch, how many of its sequence's first tokens each replica has computed.
Numbers = Sequence[Sequence[int]]


class Assignment(ABC):
    """Shares a batch among replicas.

    splits_trees: whether several replicas may compute a part of one tree. divides_sequences: whether a sequence may be
    held by a single replica. moves_sequences: whether it may go on at another one. copy_cost: what it costs to copy
    what a replica lacks from another one.
    """

    splits_trees = divides_sequences = moves_sequences = True
    copy_cost = NO_COPIES

    @abstractmethod
    def assign(self, steps: Sequence[StepInput], numbers: Numbers) -> list[Shares]:
        """The shares of each step.

        numbers: may be negative for a replica that must not compute a step (see parallel/runners/rooms.py).
        """

    def owner_of(self, sequence_id: str) -> int | None:
        """The replica that a sequence is bound to; most bind none."""
        return None

    def forget(self, sequence_id: str) -> None:  # noqa: B027
        """Forgets a sequence of which nothing is held any more. Most remember none."""


class Balanced(Assignment):
    """Makes the largest number of rows that a replica computes as small as it can, anew in every step.

    A lone sequence is shared by all replicas, or computed by one, as its step says. With many, each is computed by one
    replica, and trees are split only where that makes the loads more even.
    """

    def assign(self, steps: Sequence[StepInput], numbers: Numbers) -> list[Shares]:
        if len(steps) == 1 and len(steps[0].tree) and min(numbers[0]) >= 0:
            trunk = steps[0].num_computed - max(numbers[0])
            all_shares, loads = _lone(steps[0], numbers[0], self.copy_cost)
            if self.copy_cost.splits(trunk, len(loads)):
                owner = numbers[0].index(max(numbers[0]))
                all_shares, loads = [Shares.whole(steps[0], owner)], [0] * len(loads)
                loads[owner] = len(steps[0].tree) + trunk
        else:
            forest = Forest(steps, numbers, self.copy_cost)
            placed = forest.place()
            all_shares, loads = forest.shares(placed), placed.loads
        split_prefill(steps, numbers, all_shares, loads, self.copy_cost)
        catch_up(steps, numbers, all_shares, loads, self.copy_cost)
        return all_shares


def _lone(step: StepInput, numbers: Sequence[int], copy_cost: CopyCost) -> tuple[list[Shares], list[int]]:
    """Shares a lone tree, except with replicas whose lag is longer than the others' parts; and the loads."""
    shares = share_tree(step.tree, numbers, step.is_shared, copy_cost)
    lags, loads = copy_cost.lags(step.num_computed, numbers), [0] * len(numbers)
    for replica, rows in shares.rows.items():
        loads[replica] = len(rows) + lags[replica]
    least = min(loads[replica] for replica in shares.rows)
    most = max((loads[replica] for replica, rows in shares.rows.items() if len(rows) > 1), default=least)
    for replica in [replica for replica in shares.rows if loads[replica] > most]:
        del shares.rows[replica]  # it has the root alone, which others have too
        loads[replica] = 0
    return [shares], loads


class AllShare(Assignment):
    """Every tree is shared by all replicas, whatever else is in the batch. All of them compute the prompts."""

    divides_sequences = False

    def assign(self, steps: Sequence[StepInput], numbers: Numbers) -> list[Shares]:
        return [self._shares(step, known) for step, known in zip(steps, numbers, strict=True)]

    def _shares(self, step: StepInput, numbers: Sequence[int]) -> Shares:
        if len(step.tree):
            return share_tree(step.tree, numbers, step.is_shared)
        replicas = range(len(numbers)) if step.is_shared else [numbers.index(max(numbers))]
        return Shares({}, dict.fromkeys(replicas, step.num_computed))


class Pinned(Assignment):
    """Every sequence is computed by one replica: the one with the fewest when it came, or that held it already."""

    splits_trees = moves_sequences = False

    def __init__(self) -> None:
        self._replicas: dict[str, int] = {}

    def assign(self, steps: Sequence[StepInput], numbers: Numbers) -> list[Shares]:
        new = [number for number, step in enumerate(steps) if step.sequence.id not in self._replicas]
        for number in sorted(new, key=lambda number: not any(numbers[number])):  # those that are held come first
            self._replicas[steps[number].sequence.id] = self._choose(numbers[number])
        return [Shares.whole(step, self._replicas[step.sequence.id]) for step in steps]

    def _choose(self, numbers: Sequence[int]) -> int:
        taken = list(self._replicas.values())
        return min(range(len(numbers)), key=lambda place: (-numbers[place], taken.count(place), place))

    def owner_of(self, sequence_id: str) -> int | None:
        return self._replicas.get(sequence_id)

    def forget(self, sequence_id: str) -> None:
        self._replicas.pop(sequence_id, None)
