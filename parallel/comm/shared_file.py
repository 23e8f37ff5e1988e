"""Memory that the processes of one host share, reached by a path.

Where the system has files without a name, nothing is left behind even by a process that is killed while others come.
"""

from __future__ import annotations

import os
import tempfile

MEMORY_FOLDER = "/dev/shm"
_PREFIX = "lookahead-parallel-"


class SharedFile:
    """A file of zeros in memory, for this user only. `path` opens it until `close`; who has mapped it keeps it.

    Raises OSError if there is no room.
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


def _folder() -> str:
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else tempfile.gettempdir()
