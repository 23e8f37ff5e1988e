"""An engine whose step times are wrong learns them from the steps that it serves, and its texts stay the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lp import Engine, Output, Sampling
from lp.engine import engine as engine_module
from lp.methods.auto import host_time as host_time_module
from lp.methods.auto.method import Auto
from lp.request import Request
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.runner.step_times import measure as measure_module
from lp.runner.step_times.learn import Trial
from lp.scheduling import scheduler as scheduler_module
from lp.step_cost import StepTimes
from lp.text.stopping import Stopping
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.messages import AddRequest, Command, Shutdown, TryStep, UseTimes, decode_commands, encode_commands
from parallel.groups.worker import run_engine

# A busy machine: a step of one row seemed to take long, and one of many rows no longer.
BUSY = StepTimes((1, 2, 4, 8, 16, 32, 64), (0.1, 0.101, 0.101, 0.101, 0.101, 0.101, 0.102))
# What a row really adds to a step, and what the step takes beside that.
ROW_S, STEP_S = 0.0005, 0.002
# With a seed, since windows are filled by it.
GREEDY = Sampling(temperature=0.0, seed=1)


class Slow(SingleDevice):
    """Takes some time for each row, by a clock of its own: nothing else on this machine has a part in what steps take.

    rows: how many each step had. now: what the engine's clock shows.
    """

    def __init__(self, model: Any):
        super().__init__(model)
        self.rows: list[int] = []
        self.now = 0.0

    def launch(self, steps: list[StepInput]) -> Pending:
        num_rows = sum(len(step.tree) for step in steps)
        self.rows.append(num_rows)
        self.now += STEP_S + ROW_S * num_rows
        return super().launch(steps)


class Script:
    """An inbox that hands out requests one after the other, and each after so many looks at an idle engine."""

    def __init__(self, requests: list[Request], num_idle: int = 0):
        self.requests, self.num_idle = requests, num_idle
        self.texts: dict[str, list[int]] = {}
        self._left = num_idle
        self._running: str | None = None

    def take(self, wait_s: float) -> list[Command]:
        if self._running:
            return []
        if self._left:
            self._left -= 1
            return []
        self._left = self.num_idle
        if not self.requests:
            return [Shutdown()]
        self._running = self.requests[0].id
        return [AddRequest(self.requests.pop(0))]

    def has_waiting(self) -> bool:
        return False

    def emit(self, output: Output) -> None:
        self.texts.setdefault(output.request_id, []).extend(output.tokens)
        if output.finish_reason:
            self._running = None


@pytest.fixture
def kept() -> list[StepTimes]:
    """What the engine has asked to keep."""
    return []


@pytest.fixture
def runner(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow(llama.checkpoint.model)
    for module in (engine_module, scheduler_module, host_time_module, measure_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.fixture
def engine(llama: Engine, runner: Slow, kept: list[StepTimes]) -> Engine:
    return Engine(llama.checkpoint, runner, step_times=BUSY, keep_times=kept.append)


def requests(engine: Engine, number: int, num_tokens: int = 240) -> list[Request]:
    make, stopping = engine.request_builder.build, Stopping(num_tokens, ignore_eos=True)
    return [make([5, 9, 7] * 8, Auto(), GREEDY, stopping, request_id=str(name)) for name in range(number)]


def test_figures_of_a_busy_machine_do_not_decide_for_ever(
    engine: Engine, runner: Slow, kept: list[StepTimes], llama: Engine
) -> None:
    script = Script(requests(engine, 4))
    run_engine(engine, Channel(LocalExchange()), script, script.emit)
    assert kept and engine.history.step_times == kept[-1] and kept[-1].num_steps > 0
    few, many = kept[-1].at(2), kept[-1].at(32)
    assert many > 2 * few, "thirty rows take longer than two"
    first, last = runner.rows[:40], runner.rows[-40:]
    assert max(last) < max(first), "rows that seemed to cost nothing are not computed any more"
    assert len({tuple(text) for text in script.texts.values()}) == 1
    frozen = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model), step_times=BUSY)
    stopping = Stopping(240, ignore_eos=True)
    text = frozen.generate([5, 9, 7] * 8, decode=Auto(), temperature=0.0, stopping=stopping)
    assert text.token_ids == script.texts["0"]
    assert frozen.history.step_times is BUSY, "an engine without a place for them keeps what it has"


def test_an_idle_engine_tries_single_steps_until_it_knows_enough(
    engine: Engine, runner: Slow, kept: list[StepTimes]
) -> None:
    script = Script(requests(engine, 1, num_tokens=4), num_idle=200)
    run_engine(engine, Channel(LocalExchange()), script, script.emit)
    assert engine.next_trial() is None and set(runner.rows) >= set(BUSY.rows)
    assert runner.cache_bytes == 0, "nothing is left of the sequence that was tried"
    assert len(runner.rows) < 60 and kept[-1].at(64) > 3 * kept[-1].at(4)


def test_a_request_ends_trials(engine: Engine, runner: Slow) -> None:
    engine.try_step(Trial(1, True, False))
    engine.try_step(Trial(8, True, False))
    assert list(runner.states) == ["step-times-trial"]
    (request,) = requests(engine, 1, num_tokens=4)
    engine.add_request(request)
    assert list(runner.states) == [request.id]


def test_engines_of_programs_learn_too(llama: Engine, kept: list[StepTimes], runner: Slow) -> None:
    made = Engine(llama.checkpoint, runner, step_times=BUSY, keep_times=kept.append, is_alone=True)
    stopping = Stopping(200, ignore_eos=True)
    for _ in range(3):
        made.generate([5, 9, 7] * 8, decode=Auto(), sampling=GREEDY, stopping=stopping)
    assert kept and made.history.step_times == kept[-1]


def test_the_commands_travel() -> None:
    commands = [UseTimes(BUSY.to_dict()), TryStep(8, True, False)]
    assert decode_commands(encode_commands(commands)) == commands
