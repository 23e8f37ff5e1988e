"""The face of an exchange: how the ranks of one run hand small integers to each other.

It knows nothing of token trees or commands, and nothing of how the integers travel: see local.py, shared_memory.py and
process_group.py for that, and connect.py for the choice between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from parallel.comm.traffic import Traffic


class RankLost(RuntimeError):
    """A rank has died, has left, or did not arrive in time; the run cannot go on.

    `ranks` holds the ranks in question, ascending; it is empty when they could not be told.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class EpochOver(Exception):
    """The ranks that take part are about to change: the step under way is given up, and a new exchange follows."""


IsOver = Callable[[], bool]
"""Asked by whoever waits for another rank, some fifty times a second: should EpochOver end the wait?"""


def never() -> bool:
    """Where the same ranks take part from beginning to end."""
    return False


class Exchange(Protocol):
    """Collectives over all ranks of a run. Every rank must make the same calls in the same order.
    All of them raise EpochOver where the ranks may change.

    traffic: of this rank; `all_gather` and `broadcast` are one collective each.
    """

    rank: int
    num_ranks: int
    traffic: Traffic

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        """Gives every rank the integers of all ranks.

        mine: int32 [n], n equal on all ranks. timeout_s: seconds to wait for the others, the exchange's own if None.
        Returns a new int32 [num_ranks, n]. Raises RankLost.
        """
        ...

    def broadcast(self, data: bytes | None) -> bytes:
        """Gives every rank the bytes of rank 0, of any length; the other ranks pass None. Raises RankLost."""
        ...

    def close(self) -> None:
        """Leaves the exchange and frees what it holds; may be called twice."""
        ...


def name_ranks(ranks: tuple[int, ...]) -> str:
    """'rank 1', or 'ranks 1, 3'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
