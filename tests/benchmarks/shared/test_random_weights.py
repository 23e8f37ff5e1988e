"""Models with random weights: complete, loadable, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.shared.random_weights import check_room, make_model, write_model
from benchmarks.shared.shapes import make_config, num_parameters, read_config
from lp import Engine

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2}  # fmt: skip


def test_it_can_be_loaded_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, make_config(TINY), torch.float32, seed=3)
    files = sorted(path.name for path in (tmp_path / "one").glob("*.safetensors"))
    assert len(files) == 4  # two layers; embedding and norm; head
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    engine = Engine.from_pretrained(str(tmp_path / "one"), device="cpu")
    assert len(engine.generate("def f(", max_new_tokens=4).token_ids) == 4
    assert "random weights" in (tmp_path / "one" / "README.md").read_text().lower()


def test_one_of_a_configuration_with_tied_weights_and_biases_can_be_loaded(tmp_path: Path) -> None:
    config = make_config(TINY)
    config.tie_word_embeddings = config.attention_bias = True
    write_model(tmp_path / "model", config, torch.float32, seed=0)
    engine = Engine.from_pretrained(str(tmp_path / "model"), device="cpu")
    model = engine.checkpoint.model.model
    assert sum(weight.numel() for weight in model.parameters()) == num_parameters(config)
    assert model.get_parameter("model.layers.0.self_attn.q_proj.bias").count_nonzero() == 0


def test_one_in_memory_is_in_its_format_from_the_first() -> None:
    config = make_config(TINY)
    one, two = (make_model(config, torch.bfloat16, torch.device("cpu"), seed=3) for _ in range(2))
    assert {weight.dtype for weight in one.parameters()} == {torch.bfloat16}
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert next(one.parameters()).std() > 0


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available, total = 20e9, 32e9

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    config, cpu = read_config("llama-7b"), torch.device("cpu")
    check_room(config, torch.bfloat16, cpu, num_tokens=1024)
    with pytest.raises(SystemExit, match=r"weights 27\.0 GB, caches of 1,024 tokens 1\.1 GB.* 20\.0 of 32\.0 GB"):
        check_room(config, torch.float32, cpu, num_tokens=1024)
    with pytest.raises(SystemExit, match=r"weights 40\.4 GB in 3 copies"):
        check_room(config, torch.bfloat16, cpu, num_tokens=1024, num_copies=3)
    with pytest.raises(SystemExit, match=r"caches of 16,384 tokens 8\.6 GB"):
        check_room(config, torch.bfloat16, cpu, num_tokens=16_384)
