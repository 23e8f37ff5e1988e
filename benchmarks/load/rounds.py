"""Measures all systems in rounds: in each, every scenario is run with one system after the other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

from benchmarks.load.client import RequestRecord
from benchmarks.load.counters import growth, read_counters
from benchmarks.load.drive import Driver
from benchmarks.load.figures import Cell
from benchmarks.load.prompts import LoadRequest
from benchmarks.load.scenarios import ClosedLoop, Scenario
from benchmarks.load.systems.dialects import Api
from benchmarks.load.systems.own import own_system, running_url
from benchmarks.load.systems.specs import RunningSystem, ServerNeeds, SystemKind, SystemSpec, Unavailable
from benchmarks.load.systems.transformers_server import transformers_system


@dataclass
class Measurements:
    """What was measured. left_out: why a system has no figures, or none any more. is_cut_short: by Ctrl-C."""

    cells: list[Cell] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    is_cut_short: bool = False


def measure(
    specs: Sequence[SystemSpec],
    needs: ServerNeeds,
    api: Api,
    warm_up: Sequence[LoadRequest],
    rounds: Sequence[Sequence[Scenario]],
    timeout_s: float,
) -> Measurements:
    """Starts the systems and measures them. After Ctrl-C, what was measured until then is returned.

    rounds: the scenarios of each round. warm_up: requests that every system answers before the first round.
    """
    found = Measurements()
    try:
        with ExitStack() as held:
            systems = [system for spec in specs if (system := _start(held, spec, needs, api, found))]
            total = len(systems) * sum(len(scenario.requests) for scenarios in rounds for scenario in scenarios)
            with tqdm(total=total, unit="request", file=sys.stderr, dynamic_ncols=True) as bar:
                runner = _Runner(systems, timeout_s, found, bar)
                runner.warm_up(warm_up)
                for number, scenarios in enumerate(rounds, start=1):
                    runner.run_round(number, scenarios)
    except KeyboardInterrupt:
        found.is_cut_short = True
        tqdm.write("stopped: what was measured so far is written", file=sys.stderr)
    return found


def _start(
    held: ExitStack, spec: SystemSpec, needs: ServerNeeds, api: Api, found: Measurements
) -> RunningSystem | None:
    print(f"starting {spec.name}: {spec.described}", file=sys.stderr)
    try:
        return held.enter_context(_running(spec, needs, api))
    except Unavailable as reason:
        found.left_out[spec.name] = str(reason)
        print(f"{spec.name} is left out: {reason}", file=sys.stderr)
        return None


@contextmanager
def _running(spec: SystemSpec, needs: ServerNeeds, api: Api) -> Iterator[RunningSystem]:
    makers = {
        SystemKind.own: lambda: own_system(spec, needs, api),
        SystemKind.servers: lambda: own_system(spec, needs, api),
        SystemKind.transformers: lambda: transformers_system(spec, needs, api),
        SystemKind.url: lambda: running_url(spec, api),
    }
    with makers[spec.kind]() as system:
        yield system


class _Runner:
    """Runs scenarios and collects their cells."""

    def __init__(self, systems: Sequence[RunningSystem], timeout_s: float, found: Measurements, bar: tqdm):
        self._systems = list(systems)
        self._timeout_s = timeout_s
        self._found = found
        self._bar = bar
        self._num_errors = 0

    def warm_up(self, requests: Sequence[LoadRequest]) -> None:
        """Answers are not counted; a system that answers nothing is left out."""
        for system in self._systems:
            self._bar.set_description(f"warming {system.name} up")
            # Each server of a system gets all requests: a turn lasts as long as there are servers.
            asked = [request for request in requests for _ in system.urls]
            phase = ClosedLoop(asked, max(1, len(asked) // 2))
            records = asyncio.run(self._driver(system).run(Scenario("warm-up", {"all": phase}, "streams")))
            self._drop_if_broken(system, records)

    def run_round(self, number: int, scenarios: Sequence[Scenario]) -> None:
        for scenario in scenarios:
            for place in range(len(self._systems)):
                # Every round begins with another system, and systems that broke are not asked again.
                system = self._systems[(place + number - 1) % len(self._systems)]
                if system.name not in self._found.left_out:
                    self._run_cell(number, scenario, system)

    def _run_cell(self, number: int, scenario: Scenario, system: RunningSystem) -> None:
        self._bar.set_description(f"round {number}, {scenario.name}, {system.name}")
        before = read_counters(system.urls) if system.has_metrics else {}
        begin = time.process_time()
        records = asyncio.run(self._driver(system, self._show).run(scenario))
        used = time.process_time() - begin
        after = read_counters(system.urls) if system.has_metrics else {}
        grown = growth(before, after)
        cell = Cell(system.name, scenario.name, scenario.kind, scenario.load, number, records, grown, used)
        self._found.cells.append(cell)
        self._drop_if_broken(system, records)

    def _drop_if_broken(self, system: RunningSystem, records: Sequence[RequestRecord]) -> None:
        errors = [record.error for record in records if record.error]
        trouble = system.find_trouble()
        if trouble is None and records and len(errors) == len(records):
            trouble = f"it answered none of {len(records)} requests; the first: {errors[0]}"
        if trouble:
            self._found.left_out[system.name] = trouble
            tqdm.write(f"{system.name} is left out from here: {trouble}", file=sys.stderr)

    def _driver(self, system: RunningSystem, on_done: Callable[[RequestRecord], None] = lambda record: None) -> Driver:
        return Driver(system.urls, system.make_body, self._timeout_s, on_done)

    def _show(self, record: RequestRecord) -> None:
        self._num_errors += record.error is not None
        self._bar.update()
        if record.error:
            self._bar.set_postfix(errors=self._num_errors)
