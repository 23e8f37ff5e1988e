"""The queue of prompts that a program continues: in order, so many at a time, and then the program ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from lp.request import Output, Request
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown


class PromptQueue:
    """An Inbox (see parallel.groups.messages) that hands out requests and, when the last has ended, the shutdown.

    It serves the loop of a rank, which asks between two steps, and a supervisor, which asks from another thread than it
    calls `emit` and `lose` from. interrupted_by: the signal that ended it early, if one did.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        concurrency: int = 1,
        warm_up: Request | None = None,
        on_begin: Callable[[Request], None] = lambda request: None,
    ):
        """concurrency: requests that run at a time. warm_up: runs alone, before the others. on_begin: called with each
        request before it is handed out.
        """
        self.interrupted_by: int | None = None
        self._waiting = deque(requests)
        self._warm_up = warm_up
        if warm_up:
            self._waiting.appendleft(warm_up)
        self._concurrency = concurrency
        self._on_begin = on_begin
        self._running: dict[str, Request] = {}
        self._cancelled: set[str] = set()
        self._is_stopping = False
        # A signal handler may run in a thread that holds the lock: that thread may take it again, as it is an RLock.
        self._changed = threading.Condition(threading.RLock())

    def interrupt(self, signal_number: int, frame: Any = None) -> None:
        """A signal handler: stops, and notes the signal."""
        self.interrupted_by = signal_number
        self.stop()

    def stop(self) -> None:
        """Ends the queue early: what runs is cancelled, the rest is left out."""
        self._is_stopping = True
        with self._changed:
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Command]:
        """The commands that are due; waits up to `wait_s` for the first."""
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            if self._is_stopping:
                commands: list[Command] = [Abort(name) for name in self._running if name not in self._cancelled]
                self._cancelled.update(self._running)
            else:
                commands = []
                while self._may_begin():
                    commands.append(self._begin(self._waiting.popleft()))
            return [Shutdown()] if self._is_over() else commands

    def has_waiting(self) -> bool:
        """Whether a command is due."""
        if self._is_stopping:
            return len(self._cancelled) < len(self._running) or not self._running
        return self._may_begin() or self._is_over()

    def emit(self, output: Output) -> None:
        """Takes what a step added to a request; only its end counts here."""
        if output.finish_reason:
            with self._changed:
                self._end(output.request_id)

    def lose(self) -> list[Request]:
        """Gives up the requests that run, as no rank is left to continue them, and returns them."""
        with self._changed:
            lost = [*self._running.values()]
            for request in lost:
                self._end(request.id)
            return lost

    def _begin(self, request: Request) -> Command:
        self._on_begin(request)
        self._running[request.id] = request
        return AddRequest(request)

    def _end(self, request_id: str) -> None:
        del self._running[request_id]
        self._cancelled.discard(request_id)
        if self._warm_up and request_id == self._warm_up.id:
            self._warm_up = None
        self._changed.notify_all()

    def _may_begin(self) -> bool:
        limit = 1 if self._warm_up else self._concurrency
        return bool(self._waiting) and len(self._running) < limit

    def _is_over(self) -> bool:
        return not self._running and (self._is_stopping or not self._waiting)
