"""What starts and ends the processes of ranks: on this machine (local.py) or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from launch.supervisor.rank_spec import RankSpec

# Called from any thread when the process of a rank has ended: with the rank, and with how it ended, such as
# 'it was ended by SIGKILL'.
OnExit = Callable[[int, str], None]


class Launcher(Protocol):
    """Starts the ranks of one group and ends them.

    host: the address at which the front end listens for its ranks.
    """

    host: str

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        """Starts a rank's process, without waiting for it. `on_exit` is called once, when the process has ended.

        Raises OSError or ValueError if it cannot be started.
        """
        ...

    def kill(self, rank: int) -> None:
        """Ends a rank's process at once, even a stopped one. Does nothing if there is none."""
        ...

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """The local rank of a rank, and the number of ranks on its host."""
        ...

    def close(self) -> None:
        """Ends all processes that are left and frees what was reserved."""
        ...
