"""Threads that call torch, which may wait there for other ranks for a long time.

The interpreter does not wait for daemon threads when it ends. One that comes back from a call of torch's afterwards is
unwound through C++, and ends the process by a signal. So the end of the process waits a moment for these.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

# Seconds that all of them get together when the process ends. Their waits end soon after other ranks have left.
END_S = 5.0

_running: set[threading.Thread] = set()


def start_thread(run: Callable[..., None], *args: Any) -> threading.Thread:
    """Starts a daemon thread for which the end of the process waits a moment."""
    thread = threading.Thread(target=run, args=args, daemon=True)
    _running.difference_update([one for one in _running if one.ident is not None and not one.is_alive()])
    _running.add(thread)
    thread.start()
    return thread


@atexit.register
def _wait_for_threads() -> None:
    for thread in list(_running):
        thread.join(END_S / len(_running))
