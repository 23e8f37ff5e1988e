"""The driver's side of task=serve and task=generate: starts the front end, shows its events, and passes signals on."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launch.cluster.front_end import FrontEnd
from launch.cluster.nodes import join_cluster, shorten_ray_error
from launch.cluster.program_settings import RayGenerateSettings, RayServeSettings, resolve_settings
from launch.cluster.task import Event
from launch.config.engine_settings import to_json_values
from launch.data.output import Printer
from launch.data.prompts import collect
from launch.generate import output_of
from lp.request import Completion, Output

log = logging.getLogger("lookahead")

# Seconds that the front end waits for an event before it answers without one. Signals are passed on between answers.
EVENTS_WAIT_S = 0.25


def serve(settings: RayServeSettings) -> int:
    """Exit code 0 after SIGTERM or SIGINT, once running requests have ended. Raises ValueError."""
    settings.server.check()
    resolve_settings(settings)
    join_cluster(settings.ray.address)
    signals = Signals()
    if settings.ray.uses_ray_serve:
        from launch.cluster.ray_serve import run_replicas  # imported late, because it loads Ray Serve

        return run_replicas(settings, signals.next)
    return drive("serve", {"settings": to_json_values(settings, RayServeSettings)}, _show_nothing, signals.next)


def generate(settings: RayGenerateSettings) -> int:
    """Exit code as launch/generate.py's. Raises ValueError, and OSError if the output cannot be written."""
    named = collect(settings)
    resolve_settings(settings)
    join_cluster(settings.ray.address)
    spec = {
        "settings": to_json_values(settings, RayGenerateSettings),
        "prompts": [dataclasses.astuple(prompt) for prompt in named],
    }
    signals = Signals()
    with Printer(output_of(settings, len(named))) as printer:
        code = drive("generate", spec, Shown(printer, signals), signals.next)
    if isinstance(printer.error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    if printer.error:
        raise printer.error
    return code


def drive(kind: str, spec: dict[str, Any], show: Callable[[Event], None], next_signal: Callable[[], int | None]) -> int:
    """Runs a task in a front end on this node and returns its exit code. When the front end ends, so does its group.

    kind, spec: see make_task. show: gets the events of the task. next_signal: the next signal to pass on to the task,
    None if there is none.
    """
    # Not soft: if this is a head without cores, Ray would put it on any node, and everything would end with that node.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    front_end: Any = ray.remote(FrontEnd).options(num_cpus=0, max_concurrency=4, scheduling_strategy=here).remote()
    try:
        front_end.begin.remote(kind, json.dumps(spec))
        for event in _events(front_end, next_signal):
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
        log.error("error: the front end was lost: %s", shorten_ray_error(error))
    finally:
        ray.kill(front_end)
    return 1


def _events(front_end: Any, next_signal: Callable[[], int | None]) -> Iterator[Event]:
    while True:
        if (number := next_signal()) is not None:
            front_end.interrupt.remote(number)
        for event in ray.get(front_end.events.remote(EVENTS_WAIT_S)):
            yield json.loads(event)


def _show_nothing(event: Event) -> None:
    """A server shows nothing but its log."""


class Signals:
    """Catches SIGTERM, by which `ray job stop` ends a job, and SIGINT, and keeps them until they are asked for."""

    def __init__(self) -> None:
        self._caught: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._catch)

    def next(self) -> int | None:
        try:
            return self._caught.get_nowait()
        except Empty:
            return None

    def add(self, number: int) -> None:
        self._caught.put(number)

    def _catch(self, number: int, frame: Any) -> None:
        self._caught.put(number)


class Shown:
    """Prints the events of a front end. If the driver's output cannot be written, ends the task with SIGPIPE."""

    def __init__(self, printer: Printer, signals: Signals):
        self._printer = printer
        self._signals = signals
        self._completion = Completion()
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        match event:
            case {"begin": str(prompt)}:
                self._completion = Completion()
                self._printer.begin(prompt)
            case {"output": dict(values)}:
                output = Output.from_dict(values)
                self._completion.extend(output)
                self._printer.show(output)
            case {"end": dict(record)}:
                self._end(record)
        if self._printer.error and not self._has_failed:
            self._has_failed = True
            self._signals.add(signal.SIGPIPE)

    def _end(self, record: dict[str, Any]) -> None:
        self._printer.end(self._completion, record)
