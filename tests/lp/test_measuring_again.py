"""An engine whose step times are wrong takes others while it is idle, and its texts stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from lp import Engine, Output
from lp.methods.auto.method import Auto
from lp.request import Request
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.step_cost import StepTimes
from lp.text.stopping import Stopping
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.messages import AddRequest, Command, Measure, Shutdown, decode_commands, encode_commands
from parallel.groups.worker import run_engine

# A busy machine: a step of one row seemed to take more than a second, and one of many rows no longer.
BUSY = StepTimes((1, 64), (1.169, 1.170))
TRUE = StepTimes((1, 8, 64), (0.001, 0.004, 0.032))


class Rows(SingleDevice):
    """Notes how many rows each step has."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.rows: list[int] = []

    def start(self, steps: list[StepInput]) -> None:
        self.rows += [len(step.tree) for step in steps]
        super().start(steps)


class Script:
    """An inbox that hands out a request whenever the engine is idle, but nothing for a while after the first."""

    def __init__(self, requests: list[Request], num_empty: int):
        self.requests, self.num_empty = requests, num_empty
        self.texts: dict[str, list[int]] = {}

    def take(self, wait_s: float) -> list[Command]:
        if not wait_s:
            return []
        if self.num_empty and len(self.texts) == 1:
            self.num_empty -= 1
            return []
        return [AddRequest(self.requests.pop(0))] if self.requests else [Shutdown()]

    def has_waiting(self) -> bool:
        return False

    def emit(self, progress: Output) -> None:
        self.texts.setdefault(progress.request_id, []).extend(progress.tokens)


@pytest.fixture
def engine(llama: Engine) -> tuple[Engine, Rows]:
    runner = Rows(llama.checkpoint.model)
    made = Engine(llama.checkpoint, runner, step_times=BUSY, measure_times=lambda: TRUE)
    return made, runner


def requests(engine: Engine) -> list[Request]:
    make, stopping = engine.request_builder.build, Stopping(240, ignore_eos=True)
    return [make([5, 9, 7] * 8, Auto(), stopping=stopping, request_id=name, sampling=None) for name in ("one", "two")]


def test_figures_of_a_busy_machine_do_not_decide_for_ever(engine: tuple[Engine, Rows]):
    made, runner = engine
    made.request_builder.sampling.temperature = 0.0
    script = Script(requests(made), num_empty=1)
    wide: list[int] = []

    def measure() -> StepTimes:
        wide.extend(runner.rows)
        runner.rows.clear()
        return TRUE

    made.measure_times = measure
    run_engine(made, Channel(LocalExchange()), script, script.emit)
    assert made.history.step_times is TRUE
    assert wide and max(runner.rows) < max(wide), "rows that seemed to cost nothing are not computed any more"
    assert script.texts["one"] == script.texts["two"]


def test_figures_that_hold_stay(engine: tuple[Engine, Rows]):
    made, _ = engine
    script = Script(requests(made), num_empty=1)
    made.measure_times = None
    run_engine(made, Channel(LocalExchange()), script, script.emit)
    assert made.history.step_times is BUSY, "an engine that cannot measure keeps what it has"


def test_the_command_travels():
    assert decode_commands(encode_commands([Measure()])) == [Measure()]
