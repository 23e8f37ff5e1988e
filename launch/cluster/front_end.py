"""The front end of a group: an actor that runs one task and gives its driver a stream of events, as JSON.

Events: {"log": a line}; what the task shows, such as {"begin": ...}; and at the end {"exit_code": ...}, with an "error"
if the task failed. The front end does not know what its task does.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launch.cluster.task import Event, Task

log = logging.getLogger("lookahead")


class FrontEnd:
    """An actor with several threads: the driver reads events, and may interrupt, while the task runs."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._task: Task | None = None

    def __repr__(self) -> str:
        return "front end"

    def begin(self, kind: str, spec: str) -> None:
        """Starts the task. kind: its name, see make_task in task.py. spec: what it is to do, as JSON."""
        threading.Thread(target=self._run, args=(kind, spec), name="task", daemon=True).start()

    def events(self, wait_s: float) -> list[str]:
        """The events since the last call; waits up to `wait_s` seconds for the first."""
        found = []
        try:
            found.append(json.dumps(self._events.get(timeout=wait_s)))
            while True:
                found.append(json.dumps(self._events.get_nowait()))
        except Empty:
            return found

    def interrupt(self, number: int) -> None:
        """Passes a signal on to the task. If the task has not begun, ends without it."""
        if not (self._task and self._task.interrupt(number)):
            self._events.put({"exit_code": 128 + number})

    def _run(self, kind: str, spec: str) -> None:
        # Imported late, in this thread: the actor can answer while it loads torch and the rest that a task needs.
        from launch.backend import BackendFailed
        from launch.cluster.task import make_task

        logging.basicConfig(
            level=logging.INFO, format="%(message)s", handlers=[_EventHandler(self._events.put)], force=True
        )
        try:
            self._task = make_task(kind, json.loads(spec))
            end: Event = {"exit_code": self._task.run(self._events.put)}
        except (ValueError, OSError) as error:
            end = {"exit_code": 2, "error": str(error)}
        except BackendFailed as error:
            end = {"exit_code": error.exit_code, "error": str(error)}
        except Exception as error:
            log.debug("the task failed here", exc_info=error)
            end = {"exit_code": 1, "error": str(error)}
        self._events.put(end)


class _EventHandler(logging.Handler):
    """Turns log lines into events, so that they reach the job's log in order and none is lost when the actor ends."""

    def __init__(self, put: Callable[[Event], None]):
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        self._put({"log": self.format(record)})
