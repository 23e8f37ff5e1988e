"""Two ranks of lookahead parallelism on one GPU give the text of one rank. It shows function, not speed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lp import Auto, Engine, Lookahead, Sampling
from lp.model.checkpoint import ModelSettings, load
from lp.runner.single_device import SingleDevice
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.ranks import run_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
PROMPTS = [[7], [(3 + 7 * i) % 41 + 2 for i in range(150)]]
METHODS = [Lookahead(5, 4, 5), Auto(rows=40, max_window=5, ngram=4)]


def texts(mesh: Mesh, channel: Channel, folder: str) -> list[list[int]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    checkpoint = load(ModelSettings(path=folder, dtype="float32", device=str(mesh.device)))
    engine = Engine(checkpoint, LookaheadParallel(SingleDevice(checkpoint.model, 64), channel), fingerprints=True)
    return [
        engine.generate(prompt, max_new_tokens=24, decode=decode, sampling=Sampling(0.0, seed=3)).token_ids
        for decode in METHODS
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_two_ranks_share_a_gpu(exchange: str, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    (alone,) = run_ranks(texts, 1, folder, device="cuda:0")
    assert run_ranks(texts, 2, folder, device="cuda:0", exchange=exchange) == [alone, alone]
