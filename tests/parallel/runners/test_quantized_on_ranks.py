"""Ranks read a quantised GGUF file as it is, or the parts of it that they hold, and give the text of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Auto, Autoregressive, Sampling, Stopping
from lp.model.gguf import unpacked_folder
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.gguf_files import write_gguf
from tests.models import generate_greedily
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks
from tests.slow import slow_except

PROMPT = list(range(5, 35))


def texts(mesh: Mesh, channel: Channel, file: str, axes: dict[str, int]) -> list[list[int]]:
    sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(16)
    return [
        engine.generate(PROMPT, decode=method, sampling=sampling, stopping=stopping).token_ids
        for engine in engines(mesh, file, [axes])
        for method in (Autoregressive(), Auto())
    ]


@pytest.mark.parametrize(
    "axes",
    slow_except([{"lp": 2}, {"tp": 2}, {"pp": 2}, {"lp": 4}, {"lp": 2, "tp": 2}], {"lp": 2}, {"tp": 2}, {"pp": 2}),
    ids=str,
)
def test_the_text_is_that_of_transformers(
    axes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "Tiny.gguf", kinds=("Q4_0", "Q5_1", "Q8_0"))
    model = AutoModelForCausalLM.from_pretrained(unpacked_folder(str(file)), dtype=torch.float32)
    expected = generate_greedily(model, PROMPT, 16, eos=[1])
    num_ranks = torch.tensor([*axes.values()]).prod().item()
    for found in run_ranks(texts, int(num_ranks), str(file), axes):
        assert found == [expected, expected]
