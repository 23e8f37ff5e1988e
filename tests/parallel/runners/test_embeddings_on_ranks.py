"""Embeddings under every mode of parallelism are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lp import Engine
from lp.request import Pooling
from lp.runner.step_times.measure import StepTimesSource
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks

PROMPTS = [[(5 * at) % 97 + 2 for at in range(length)] for length in (1, 7, 150)]
MODES: list[dict[str, int]] = [{"lp": 2}, {"tp": 2}, {"pp": 2}]


def embed(mesh: Mesh, channel: Channel, folder: str) -> list[list[list[float]]]:
    """Embeds all prompts in both ways, under each mode."""
    made = engines(mesh, folder, MODES, step_times=StepTimesSource.off)
    return [[engine.embed(prompt, pooling) for prompt in PROMPTS for pooling in Pooling] for engine in made]


@pytest.mark.slow
def test_all_modes_give_the_embeddings_of_one_device(checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    by_rank = run_ranks(embed, 2, str(checkpoint_folder("llama")), exchange="gloo", timeout_s=60, limit_s=300)
    expected = [llama.embed(prompt, pooling) for prompt in PROMPTS for pooling in Pooling]
    for found in by_rank:
        for number, mode in enumerate(MODES):
            for one, other in zip(found[number], expected, strict=True):
                assert np.allclose(one, other, rtol=0, atol=1e-4), mode
