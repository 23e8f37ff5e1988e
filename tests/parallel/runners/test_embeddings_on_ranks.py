"""Embeddings under every mode of parallelism are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore

from lp import Engine
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from lp.request import Pooling
from lp.runner.step_times.measure import StepTimesSource
from parallel.build import MeshTopology
from parallel.comm.channel import Channel
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from tests.parallel.ranks import run_ranks

PROMPTS = [[(5 * at) % 97 + 2 for at in range(length)] for length in (1, 7, 150)]
MODES: list[dict[str, int]] = [{"lp": 2}, {"tp": 2}, {"pp": 2}]


def embed(mesh: Mesh, channel: Channel, folder: str) -> list[list[list[float]]]:
    """By mode: the embeddings of all prompts in both ways."""
    torch.set_num_threads(1)
    settings = ParallelSettings(exchange=ExchangeKind.gloo, timeout_s=60)
    store = open_store(mesh, settings.timeout_s)
    found = []
    for axes in MODES:
        place = MeshTopology(settings, Mesh(axes, mesh.rank, mesh.num_ranks), PrefixStore(str(axes), store))
        model = ModelSettings(folder, device="cpu")
        engine = Engine.assemble(EngineSettings(model, step_times=StepTimesSource.off), place)
        found.append([engine.embed(prompt, pooling) for prompt in PROMPTS for pooling in Pooling])
        place.close()
    return found


@pytest.mark.slow
def test_all_modes_give_the_embeddings_of_one_device(checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    by_rank = run_ranks(embed, 2, str(checkpoint_folder("llama")), exchange="gloo", timeout_s=60, limit_s=300)
    expected = [llama.embed(prompt, pooling) for prompt in PROMPTS for pooling in Pooling]
    for found in by_rank:
        for number, mode in enumerate(MODES):
            for one, other in zip(found[number], expected, strict=True):
                assert np.allclose(one, other, rtol=0, atol=1e-4), mode
