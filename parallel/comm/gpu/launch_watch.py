"""Watches that what a rank has launched on its GPU ends in time, whatever the host is doing meanwhile.

The host launches collectives and goes on. If another rank is lost, they never end, and the host comes to stand still
in a call of CUDA's: a copy that awaits their result, or a launch, as the queue is full. Those calls leave Python to
other threads, so one of them keeps the time. Knows nothing of what was launched.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from parallel.comm.spin_wait import LIVENESS_S


class Mark(Protocol):
    """An event of a GPU. query: whether everything launched before it has been done."""

    def query(self) -> bool: ...


class LaunchWatch:
    """The marks of one group, and the thread that watches them while there are any.

    failure: why the group was given up; empty as long as it is in order.
    """

    def __init__(self, give_up: Callable[[], None]):
        """give_up: ends whatever is under way on the GPU. It is called once, in the thread of the watch."""
        self.failure = ""
        self._give_up = give_up
        self._marks: deque[tuple[Mark, float, float]] = deque()  # with limit and deadline
        self._wake = threading.Event()
        self._has_ended = False
        self._thread: threading.Thread | None = None

    def expect(self, mark: Mark, limit_s: float) -> None:
        """Expects a mark to be reached within so many seconds."""
        self._marks.append((mark, limit_s, time.monotonic() + limit_s))
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="launch watch", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Ends the thread; may be called twice."""
        self._has_ended = True
        self._wake.set()

    def _run(self) -> None:
        while not self._has_ended and not self.failure:
            if not self._marks:
                self._wake.clear()
                if not self._marks and not self._has_ended:  # `end` may have come just before
                    self._wake.wait()
                continue
            self._look()
            time.sleep(LIVENESS_S)
        self._marks.clear()

    def _look(self) -> None:
        """Drops the marks that have been reached. Gives up if the oldest of the others is late, or the GPU fails."""
        try:
            while self._marks and self._marks[0][0].query():
                self._marks.popleft()
        except RuntimeError as error:  # such as an illegal memory access, which every later call reports, too
            self.failure = f"the GPU failed: {error}"
        if self._marks and not self.failure and time.monotonic() > self._marks[0][2]:
            self.failure = f"NCCL timed out after {self._marks[0][1]:g} s"
        if self.failure:
            self._give_up()
