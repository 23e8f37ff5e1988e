"""Where one rank lacks the compiled library, all ranks make the drafts that Python makes, and texts are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import PrefixStore

from lp import Auto, Engine
from lp.drafting.simple import SimpleDrafter
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from lp.platform import library
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.measure import StepTimesSource
from parallel.build import MeshTopology
from parallel.groups.epoch import Epoch, resume
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.ranks import run_ranks

PROMPT, NUM_TOKENS = [5, 9, 5, 9, 5, 7, 30, 31, 32, 5, 9], 40


def generate(mesh: Mesh, channel, folder: str, lacking: int, is_epoch: bool) -> tuple[list[int], int]:
    """The tokens of a text and the steps that they took. lacking: the rank without the library."""
    torch.set_num_threads(1)
    if mesh.rank == lacking:
        library._load = lambda: None
    if is_epoch:  # each rank has been alone before
        engine = Engine.from_pretrained(folder, step_times="off", device="cpu")
        runner = LookaheadParallel(SingleDevice(engine.checkpoint.model), channel)
        list(resume(engine, runner, channel, Epoch(1, [0, 1]), None))
    else:
        settings = ParallelSettings(exchange=ExchangeKind.gloo, timeout_s=60)
        place = MeshTopology(
            settings, Mesh({"lp": 2}, mesh.rank, 2), PrefixStore("lp", open_store(mesh, settings.timeout_s))
        )
        model = ModelSettings(folder, device="cpu")
        engine = Engine.assemble(EngineSettings(model, step_times=StepTimesSource.off), place)
    assert isinstance(engine.history.drafter(Auto(), PROMPT, 0.0, None), SimpleDrafter)
    done = engine.generate(PROMPT, max_new_tokens=NUM_TOKENS, decode=Auto(rows=16), temperature=0.0)
    return done.token_ids, done.stats.steps


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("is_epoch", [False, True], ids=["mesh", "epoch"])
def test_all_ranks_draft_alike(
    lacking: int, is_epoch: bool, checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    expected = llama.generate(PROMPT, max_new_tokens=NUM_TOKENS, temperature=0.0).token_ids
    folder = str(checkpoint_folder("llama"))
    one, other = run_ranks(generate, 2, folder, lacking, is_epoch, exchange="gloo", timeout_s=60, limit_s=120)
    assert one == other and one[0] == expected and one[1] < NUM_TOKENS
