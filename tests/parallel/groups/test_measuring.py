"""Ranks whose step times are wrong take the same new ones between the same two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Stopping
from lp.methods.auto.method import Auto
from lp.sampling.settings import Sampling
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.groups.messages import AddRequest, Command, Shutdown
from parallel.groups.worker import run_engine
from parallel.mesh import Mesh
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_lookahead_parallel import parallel_engine

BUSY = StepTimes((1, 64), (9.0, 9.001), num_parts=2, alone=StepTimes((1, 64), (9.0, 9.001)))


class Script:
    """Hands out a request whenever the engine is idle, and leaves it idle once between the two."""

    def __init__(self, commands: list[Command | None]):
        self.commands = commands
        self.texts: dict[str, list[int]] = {}

    def has_waiting(self) -> bool:
        return False

    def take(self, wait_s: float) -> list[Command]:
        if not wait_s:
            return []
        command = self.commands.pop(0) if self.commands else Shutdown()
        return [command] if command else []


def serve(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], float, int]:
    """Returns the texts, this rank's time of a step of one row at the end, and how often it has measured."""
    engine = parallel_engine(channel, folder)
    engine.resume(engine.runner, [], BUSY)
    measured: list[float] = []

    def measure() -> StepTimes:
        own = StepTimes((1, 64), (0.001 + mesh.rank, 1.0 + mesh.rank), num_parts=2, alone=BUSY.alone)
        measured.append(own.seconds[0])
        return StepTimes.from_dict(channel.broadcast(own.to_dict()))

    engine.measure_times = measure
    make, stopping = engine.request_builder.build, Stopping(240, ignore_eos=True)
    first, second = (
        AddRequest(make([5, 9, 7] * 8, Auto(), Sampling(0.0, seed=1), stopping, request_id=name))
        for name in ("one", "two")
    )
    script = Script([first, None, second])
    run_engine(
        engine,
        channel,
        script if mesh.rank == 0 else None,
        lambda progress: script.texts.setdefault(progress.request_id, []).extend(progress.tokens),
    )
    times = engine.history.step_times
    assert times is not None
    return script.texts, times.seconds[0], len(measured)


@pytest.mark.parametrize("num_ranks", [2])
def test_ranks_measure_together(checkpoint_folder: Callable[[str], Path], num_ranks: int) -> None:
    found = run_ranks(serve, num_ranks, str(checkpoint_folder("llama")))
    for texts, one_row_s, num_measured in found:
        assert (one_row_s, num_measured) == (0.001, 1), "every rank has the figures of the first"
        assert texts["one"] == texts["two"] and len(texts["one"]) == 240
    assert found[0][0] == found[1][0]
