"""The front end of a group in an actor of its own, and the driver's side of it: a stream of events, as JSON.

Events: {"log": a line}, what a task shows ({"begin": ...} and so on), and last {"exit_code": ...}, with {"error": ...}
if there is something to say. Knows nothing of what the tasks do.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launch.cluster import nodes

log = logging.getLogger("lookahead")

Event = dict[str, Any]
LOOK_S = 0.25


class Task(Protocol):
    """Work of a front end. `interrupt` may be called from any thread."""

    def run(self, show: Callable[[Event], None]) -> int:
        """Exit code. Raises ValueError for what the user can mend."""
        ...

    def interrupt(self, number: int) -> bool:
        """A signal: the work is to come to an end. False if it has not begun, so that it can be dropped."""
        ...


class FrontEnd:
    """An actor of several threads: it is asked for events, and may be interrupted, while its task runs."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._task: Task | None = None

    def __repr__(self) -> str:
        return "front end"

    def begin(self, kind: str, order: str) -> None:
        """kind: the name of a task, see launch.cluster.task. order: what it is told, as JSON."""
        threading.Thread(target=self._run, args=(kind, order), name="task", daemon=True).start()

    def events(self, wait_s: float) -> list[str]:
        """What has come since the last call; waits up to `wait_s` for the first."""
        found = []
        try:
            found.append(json.dumps(self._events.get(timeout=wait_s)))
            while True:
                found.append(json.dumps(self._events.get_nowait()))
        except Empty:
            return found

    def interrupt(self, number: int) -> None:
        if not (self._task and self._task.interrupt(number)):
            self._events.put({"exit_code": 128 + number})

    def _run(self, kind: str, order: str) -> None:
        from launch.backend import BackendFailed
        from launch.cluster.task import make  # not before: the actor is to answer while it loads what the task needs

        logging.basicConfig(
            level=logging.INFO, format="%(message)s", handlers=[_EventHandler(self._events.put)], force=True
        )
        try:
            self._task = make(kind, json.loads(order))
            end: Event = {"exit_code": self._task.run(self._events.put)}
        except (ValueError, OSError) as error:
            end = {"exit_code": 2, "error": str(error)}
        except BackendFailed as error:
            end = {"exit_code": error.exit_code, "error": str(error)}
        except Exception as error:
            log.debug("where it happened", exc_info=error)
            end = {"exit_code": 1, "error": str(error)}
        self._events.put(end)


class _EventHandler(logging.Handler):
    """Log lines as events: they reach the job's log in order, and none is lost when the actor ends."""

    def __init__(self, put: Callable[[Event], None]):
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        self._put({"log": self.format(record)})


def drive(kind: str, order: Event, show: Callable[[Event], None], interrupted: Callable[[], int | None]) -> int:
    """Runs a task in a front end on this node; its exit code. The front end's end frees all that it had.

    show: gets the task's events. interrupted: the signal with which to end it, once for each that came.
    """
    # Not soft: Ray would put it anywhere if this is a head without cores, and its death with a node would end all.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    front_end: Any = ray.remote(FrontEnd).options(num_cpus=0, max_concurrency=4, scheduling_strategy=here).remote()
    try:
        front_end.begin.remote(kind, json.dumps(order))
        for event in _events(front_end, interrupted):
            match event:
                case {"log": str(line)}:
                    print(line, file=sys.stderr, flush=True)
                case {"exit_code": int(code)}:
                    if "error" in event:
                        log.error("error: %s", event["error"])
                    return code
                case _:
                    show(event)
    except RayError as error:
        log.error("error: the front end was lost: %s", nodes.in_short(error))
    finally:
        ray.kill(front_end)
    return 1


def _events(front_end: Any, interrupted: Callable[[], int | None]) -> Iterator[Event]:
    while True:
        if (number := interrupted()) is not None:
            front_end.interrupt.remote(number)
        for event in ray.get(front_end.events.remote(LOOK_S)):
            yield json.loads(event)


class Signals:
    """SIGTERM, by which `ray job stop` ends a job, and SIGINT, noted until they are asked for."""

    def __init__(self) -> None:
        self._noted: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def next(self) -> int | None:
        try:
            return self._noted.get_nowait()
        except Empty:
            return None

    def add(self, number: int) -> None:
        self._noted.put(number)

    def _note(self, number: int, frame: Any) -> None:
        self._noted.put(number)
