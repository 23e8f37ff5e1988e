"""The face of what starts the processes of ranks: on this machine (local.py), or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from launch.supervisor.rank_spec import RankSpec

OnExit = Callable[[int, str], None]
"""Told, from any thread, that the process of a rank has ended, and how: 'it was ended by SIGKILL'."""


class Launcher(Protocol):
    """Starts the ranks of one group and ends them.

    host: the address at which the front end listens for its ranks.
    """

    host: str

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        """Starts a rank's process, which may take its time to come; `on_exit` is called once, when it has ended.

        Raises OSError or ValueError if it cannot be started.
        """
        ...

    def kill(self, rank: int) -> None:
        """Ends a rank's process at once, if there is one, even one that is stopped."""
        ...

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """(local rank, ranks of its host) of a rank."""
        ...

    def close(self) -> None:
        """Ends all that is left and frees what was reserved."""
        ...
