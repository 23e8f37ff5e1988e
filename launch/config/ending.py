"""How a command's process ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

# Python's exit code if the last output cannot be written.
LOST_OUTPUT = 120


def leave(code: int) -> NoReturn:
    """Ends the process as Python does, but does not release its objects one by one: those of PyTorch and transformers
    are hundreds of thousands, and take two seconds.
    """
    # As the interpreter does: it ends the threads of executors, waits for all that are no daemons, and runs what was
    # registered.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # a full disk, or a reader that has left
        code = code or LOST_OUTPUT
    os._exit(code)
