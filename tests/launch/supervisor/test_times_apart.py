"""By which step times a rank plans: those that all ranks share, and in a divided epoch those of its own steps."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from launch.config.engine_settings import to_json_values
from launch.config.runtime import RuntimeSettings
from launch.supervisor import rank as rank_module
from launch.supervisor.launcher import RankSpec
from launch.supervisor.rank import Rank
from lp import Auto, Engine
from lp.model.checkpoint import ModelSettings
from lp.runner.runner import Runner
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.groups.epoch import Epoch
from parallel.groups.worker import Join, Resume
from parallel.mesh import Mesh, Mode, ParallelSettings
from tests.parallel.ranks import run_ranks

# Rank 2 comes when the others have measured, and each serves requests of its own then; at last all share steps.
EPOCHS = [
    Epoch(1, [0, 1], is_first=True),
    Epoch(2, [0, 1], group_size=1),
    Epoch(3, [0, 1, 2]),
    Epoch(4, [0, 1, 2], group_size=1),
]
# Seconds of a step of one row, as this test has them measured.
SHARED_S, APART_S = 0.02, 0.03


class Played:
    """A Worker without a front end: its epochs are given. planned: by what the engine plans in each, in seconds."""

    def __init__(self, number: int):
        self.number = number
        self.planned: dict[int, float | None] = {}

    def send(self, message: Any) -> None: ...

    def is_over(self) -> bool:
        return False

    def serve(self, engine: Engine, join: Join, resume: Resume) -> None:
        for epoch in EPOCHS:
            if self.number not in epoch.members:
                continue
            joining: AbstractContextManager[Channel] = join(epoch)
            with joining as channel:
                resume(epoch, channel)
                times = engine.history.step_times
                assert times == engine.planner.step_times, "decoders and batches plan by the same times"
                self.planned[epoch.number] = times and times.seconds[0]


def play(
    mesh: Mesh, channel: Channel, folder: str, mode: Mode, is_measured: bool = True
) -> tuple[dict[int, float | None], list[list[str]]]:
    """What this rank plans by in each epoch, and what it has measured: the runner's kind, and words of the mode."""
    measured: list[list[str]] = []

    def find(builder: Any, source: StepTimesSource, model: Any, runner: Runner, described: list[Any], tell: Any):
        apart = "apart" in described
        measured.append([type(runner).__name__, "apart" if apart else "shared"])
        if source is StepTimesSource.off:
            return None
        own = (APART_S if apart else SHARED_S) * (1 + mesh.rank)  # ranks measure different times, and plan by rank 0's
        times = StepTimes((1, 64), (own, 2 * own), 1 if isinstance(runner, SingleDevice) else runner.num_parts)
        return StepTimes.from_dict(tell(times.to_dict()))

    rank_module.find_step_times = find  # in this process alone
    settings = RuntimeSettings(ModelSettings(folder, device="cpu"), Auto(), parallel=ParallelSettings(mode, ranks=3))
    settings.step_times = StepTimesSource.measure if is_measured else StepTimesSource.off
    store = "127.0.0.1", int(os.environ["MASTER_PORT"])
    values = to_json_values(settings, RuntimeSettings)
    spec = RankSpec(mesh.rank, 3, mesh.rank, 3, values, ("127.0.0.1", 1), store)
    worker = Played(mesh.rank)
    Rank.of(spec, worker).serve()  # type: ignore[arg-type]
    return worker.planned, measured


def test_ranks_that_are_divided_plan_by_what_their_own_steps_take(model: Path) -> None:
    """All ranks plan by the times that rank 0 has measured, one that comes later as well."""
    *first, newcomer = run_ranks(play, 3, str(model), Mode.auto)
    for planned, measured in first:
        assert planned == {1: SHARED_S, 2: APART_S, 3: SHARED_S, 4: APART_S}
        assert measured == [["LookaheadParallel", "shared"], ["SingleDevice", "apart"]], "once, in the first epoch"
    assert newcomer == ({3: SHARED_S, 4: APART_S}, [])


def test_ranks_that_always_share_steps_measure_nothing_apart(model: Path) -> None:
    for planned, measured in run_ranks(play, 3, str(model), Mode.lp)[:2]:
        assert planned[1] == planned[3] == SHARED_S
        assert measured == [["LookaheadParallel", "shared"]]


def test_where_nothing_is_measured_nothing_is_planned_by(model: Path) -> None:
    for planned, _ in run_ranks(play, 3, str(model), Mode.auto, False):
        assert set(planned.values()) == {None}
