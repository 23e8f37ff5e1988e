"""On which replicas the sequences of a batch may be computed, as far as their memory goes.

The engine says on which replica each running sequence has room, its home (lp/scheduling/kv_budget.py). What the homes
leave is lent to others: to those that take parts of trees, follow, or have moved there because there were fewer rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lp.runner.runner import Home, StepInput

# The number of tokens that a replica is said to have computed of a sequence for which it has no room: its lag is then
# longer than any work.
BARRED = -(2**40)


class Rooms:
    """The homes of the sequences that run, and what they leave.

    reserved: pages of each replica that belong to sequences at home there.
    """

    def __init__(self, num_pages: int, num_replicas: int, lends: bool):
        """num_pages: of each replica. lends: whether sequences may be computed elsewhere than at home."""
        self.num_pages = num_pages
        self.lends = lends
        self.homes: Mapping[str, Home] = {}
        self.reserved = [0] * num_replicas

    def arrange(self, homes: Mapping[str, Home]) -> None:
        """Takes the homes of all sequences that run."""
        self.homes = homes
        self.reserved = [0] * len(self.reserved)
        for home in homes.values():
            self.reserved[home.replica] += home.num_pages

    def barred(self, steps: Sequence[StepInput], numbers: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The same numbers, with BARRED for each replica that must not compute a step; at home each step may be.

        numbers: for each step, how many of its sequence's first tokens each replica has computed.
        """
        if sum(self.reserved) <= self.num_pages:  # every replica could hold them all
            return numbers
        homes = [self.homes.get(step.sequence.id) for step in steps]
        allowed = [{home.replica} if home else set(range(len(self.reserved))) for home in homes]
        if self.lends:
            self._lend(homes, numbers, allowed)
        return [
            [number if replica in places else BARRED for replica, number in enumerate(known)]
            for known, places in zip(numbers, allowed, strict=True)
        ]

    def _lend(
        self, homes: Sequence[Home | None], numbers: Sequence[Sequence[int]], allowed: Sequence[set[int]]
    ) -> None:
        """Lends what is left to those that have the smallest lags there, and adds the replicas to the allowed ones."""
        spare = [self.num_pages - reserved for reserved in self.reserved]
        most = max(spare)
        wishes = [
            (max(known) - known[replica], number, replica, home.num_pages)
            for number, (home, known) in enumerate(zip(homes, numbers, strict=True))
            if home and home.num_pages <= most
            for replica, left in enumerate(spare)
            if replica != home.replica and home.num_pages <= left
        ]
        for _, number, replica, num_pages in sorted(wishes):
            if num_pages <= spare[replica]:
                spare[replica] -= num_pages
                allowed[number].add(replica)
