"""Step times on several ranks: all measure or none does, whichever ranks have a cache, and all get the same times."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lp.model.checkpoint import ModelSettings, load
from lp.platform.disk_cache import VARIABLE
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import resolve_step_times
from lp.runner.step_times.measure import StepTimesSource
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.ranks import run_ranks

Result = tuple[dict[str, list[float]], int, bool]


def resolve(mesh, channel, folder: str, roots: list[str]) -> Result:
    """The times, the number of steps that measuring took, and whether any commands were shared."""
    os.environ[VARIABLE] = roots[mesh.rank]
    model = load(ModelSettings(path=folder, device="cpu")).model
    runner = LookaheadParallel(SingleDevice(model), channel)
    times = resolve_step_times(StepTimesSource.auto, model, runner, 16, [dict(mesh.axes)], channel.broadcast)
    assert times is not None
    return times.to_dict(), channel.num_steps, channel.has_shared


@pytest.fixture
def resolved(checkpoint_folder: Callable[[str], Path]) -> Callable[[list[Path]], list[Result]]:
    """Resolves step times on two ranks, each with a cache of its own."""
    folder = str(checkpoint_folder("llama"))
    return lambda roots: run_ranks(resolve, 2, folder, [str(root) for root in roots], exchange="gloo")


@pytest.mark.slow
def test_the_cache_of_rank_0_alone_decides(resolved: Callable[[list[Path]], list[Result]], tmp_path: Path) -> None:
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    (times, num_steps, has_shared), second = resolved([one, two])
    assert second == (times, num_steps, has_shared)
    assert num_steps > 0 and not has_shared
    assert times["rows"] == [1, 2, 4, 8, 12, 16]
    (kept,) = (one / "step-times").iterdir()
    assert json.loads(kept.read_text()) == times

    assert times["extras"]["copied_token"] == 0, "this runner was given no messages"

    assert resolved([one, other]) == [(times, 0, False)] * 2
    assert list((other / "step-times").iterdir()) == []

    (kept,) = (two / "step-times").iterdir()
    old = {"rows": [1], "seconds": [123.0]}
    kept.write_text(json.dumps(old))
    (anew, num_steps, _), second = resolved([tmp_path / "empty", two])
    assert second[0] == anew and anew != old and num_steps > 0
    assert json.loads(kept.read_text()) == anew
