"""Random GGUF files have the types that their name says; steps of a file are measured beside its floor."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from benchmarks import packed_steps
from benchmarks.shared.random_gguf import write_gguf
from benchmarks.shared.shapes import make_config
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.gguf_header import read_header
from lp.tree import chain
from tests import gguf_files
from tests.benchmarks.results import read

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 4200}  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_random_file_has_the_mix_of_types_and_finite_logits(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, make_config(SIZES))
    kinds = {name: GGMLQuantizationType(one.kind).name for name, one in read_header(file).tensors.items()}
    assert Counter(kinds.values()) == {"F32": 17, "Q4_K": 1 + 8 * 7 - 2 * 4, "Q6_K": 1 + 2 * 4}
    assert kinds["output.weight"] == kinds["blk.0.ffn_down.weight"] == kinds["blk.7.attn_v.weight"] == "Q6_K"
    model = load(ModelSettings(str(file), "float32", "cpu", compile=CompileMode.off)).model
    logits = model.forward(chain([3, 50, 4100]), model.make_cache(), num_logits=3)
    assert torch.isfinite(logits).all() and 0.1 < logits.std() < 10


@pytest.mark.slow
def test_steps_of_a_file_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_files.write_gguf(tmp_path / "tiny.gguf", kinds=("Q8_0",))
    options = ["--model", str(file), "--rows", "1,5", "--rounds", "3", "--cached", "8", "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", ["packed_steps", *options, "--output", str(tmp_path)])
    packed_steps.main()
    table, figures = read(tmp_path, "packed_steps-tiny-float32")
    assert set(figures["rounds"]) == {"1", "5"}
    for rounds in figures["rounds"].values():
        assert len(rounds) == 3 and all(one["step_s"] > 0 and one["floor_s"] > 0 for one in rounds)
    assert 0 < figures["step_bytes"] < figures["file_bytes"]
    for part in figures["parts"]:
        assert part["products"] > 0 and part["head"] > 0
    assert "of the floor" in table
