"""The ways in which a run of several ranks fails, or has to start its exchange again."""

from __future__ import annotations


class RankLost(RuntimeError):
    """A rank has died, has left or did not arrive in time, so that the run cannot go on.

    ranks: the ranks in question, ascending; empty if nobody could tell which they are.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class EpochOver(Exception):
    """The ranks that take part are about to change: the current step is given up, and a new exchange follows."""


class StateDiverged(RuntimeError):
    """The ranks no longer hold the same state.

    rank: the first rank whose state differs from rank 0's. step: the step in which that was found, counted from 1.
    """

    def __init__(self, message: str, rank: int = -1, step: int = -1) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step


def name_ranks(ranks: tuple[int, ...]) -> str:
    """Names ranks in a message: 'rank 1', or 'ranks 1, 3'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
