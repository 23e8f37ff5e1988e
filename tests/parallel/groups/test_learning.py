"""Ranks that share steps learn from the slowest of them, and take the same step times between the same two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Stopping
from lp.methods.auto.method import Auto
from lp.request import Output
from lp.sampling.settings import Sampling
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.groups.messages import AddRequest, Command, Shutdown
from parallel.groups.worker import run_engine
from parallel.mesh import Mesh
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_lookahead_parallel import parallel_engine

ROWS = (1, 2, 4, 8, 16, 32, 64)
FLAT = StepTimes(ROWS, (0.02,) * 7, num_parts=2, alone=StepTimes(ROWS, (0.02,) * 7))
# What each row takes the slower rank: more than what other processes add to a step of few rows.
ROW_S = 0.003


class Script:
    """Hands out requests one after the other, and leaves the engine idle for some looks before the end."""

    def __init__(self, commands: list[Command]):
        self.commands, self.texts = commands, dict[str, list[int]]()
        self._is_running, self._num_idle = False, 120

    def has_waiting(self) -> bool:
        return False

    def take(self, wait_s: float) -> list[Command]:
        if self._is_running:
            return []
        if self.commands:
            self._is_running = True
            return [self.commands.pop(0)]
        self._num_idle -= 1
        return [] if self._num_idle else [Shutdown()]

    def emit(self, output: Output) -> None:
        self.texts.setdefault(output.request_id, []).extend(output.tokens)
        self._is_running = not output.finish_reason


def serve(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], dict[str, object], int, list[str]]:
    """The texts, this rank's step times at the end, how often they changed, and which sequences are left open."""
    engine = parallel_engine(channel, folder)
    kept: list[StepTimes] = []
    used: list[StepTimes] = []
    engine.keep_times = kept.append if channel.is_leader else None
    engine.resume(engine.runner, [], FLAT)
    use, launch = engine.use_times, engine.runner.inner.launch  # type: ignore[attr-defined]

    def slow_launch(steps: list):
        if mesh.rank == 1:
            time.sleep(ROW_S * sum(len(step.tree) for step in steps))
        return launch(steps)

    def note(times: StepTimes) -> None:
        used.append(times)
        use(times)

    engine.runner.inner.launch = slow_launch  # type: ignore[attr-defined]
    engine.use_times = note  # type: ignore[method-assign]
    make, stopping = engine.request_builder.build, Stopping(150, ignore_eos=True)
    commands: list[Command] = [
        AddRequest(make([5, 9, 7] * 8, Auto(), Sampling(0.0, seed=1), stopping, request_id=str(name)))
        for name in range(3)
    ]
    script = Script(commands)
    run_engine(engine, channel, script if channel.is_leader else None, script.emit)
    times = engine.history.step_times
    assert times is not None and used[-1] == times
    assert len(kept) == (len(used) if channel.is_leader else 0)
    return script.texts, times.to_dict(), len(used), [*engine.runner.inner.states]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2])
def test_ranks_learn_alike_and_from_the_slowest(checkpoint_folder: Callable[[str], Path], num_ranks: int) -> None:
    (texts, times, number, left_open), *others = run_ranks(serve, num_ranks, str(checkpoint_folder("llama")))
    assert len(texts) == 3 and len({tuple(text) for text in texts.values()}) == 1
    assert number > 0 and left_open in ([], ["step-times-trial"])
    assert [other[1:] for other in others] == [(times, number, left_open)] * len(others), "all take the same times"
    learnt = StepTimes.from_dict(times)
    # Rank 0 alone is quick whatever it computes, and its own steps would leave the curve flat: 1.2 times at most.
    assert learnt.at(64) > 2 * learnt.at(2)
