"""Memory that the processes of one host share: a file that one rank creates and that every rank maps.

Where the system has files without a name, nothing is left behind even if a process is killed while others still join.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from torch.distributed import Store

from parallel.comm.base import IsOver
from parallel.comm.peers import await_keys
from parallel.errors import RankLost

MEMORY_FOLDER = "/dev/shm"
_PREFIX = "lookahead-parallel-"
_PATH_KEY = "shared_memory_path"


class SharedFile:
    """A file of zeros in memory, for this user only.

    `path` opens it until `close`; a process that has mapped it keeps it. Raises OSError if there is no room.
    """

    def __init__(self, num_bytes: int) -> None:
        self._is_unnamed = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
        if self._is_unnamed:
            self._descriptor = os.memfd_create(_PREFIX + "memory")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self.path = tempfile.mkstemp(prefix=_PREFIX, dir=_folder())
        try:
            # Written, not only sized: touching a hole later, with memory full, would kill the process with SIGBUS.
            with open(self._descriptor, "wb", closefd=False) as file:
                file.write(bytes(num_bytes))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Takes the path away."""
        if not self._is_unnamed:
            os.unlink(self.path)
        os.close(self._descriptor)


@contextmanager
def shared_path(
    store: Store, rank: int, leader: int, timeout_s: float, is_over: IsOver, create: Callable[[], SharedFile]
) -> Iterator[str]:
    """Gives every rank the path of a file that the leader creates. In the body all ranks map the file and meet.

    The path is taken away when the leader's body ends. rank, leader: as the run counts them. Raises RankLost and
    EpochOver.
    """
    if rank == leader:
        with closing(create()) as file:
            store.set(_PATH_KEY, file.path)
            yield file.path
    elif await_keys(store, [_PATH_KEY], timeout_s, is_over):
        raise RankLost(
            f"rank {leader} did not set up the shared memory within {timeout_s:g} s. See rank {leader}'s own output, "
            "then start the run again.",
            (leader,),
        )
    else:
        yield store.get(_PATH_KEY).decode()


def _folder() -> str:
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else tempfile.gettempdir()
