"""Heads on disk: what is written can be read; heads of another model, or damaged ones, are refused with one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lp import Engine
from lp.model.errors import CheckpointError
from lp.model.heads.files import CONFIG, WEIGHTS, digest_of_heads, load_heads, read_info, save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads
from tests.models import VOCAB_SIZE

CPU = torch.device("cpu")


def make_heads(folder: Path, hidden_size: int = 32, vocab_size: int = VOCAB_SIZE, shares: bool = False) -> Path:
    torch.manual_seed(0)
    save_heads(MedusaHeads(HeadsInfo(hidden_size, vocab_size, 2, 2, shares)), folder)
    return folder


@pytest.mark.parametrize("shares", [False, True])
def test_what_is_written_is_read(shares: bool, tmp_path: Path) -> None:
    heads = MedusaHeads(HeadsInfo(8, 20, 3, 2, shares))
    save_heads(heads, tmp_path)
    read = load_heads(tmp_path, read_info(tmp_path), torch.float32, CPU)
    assert read.info == heads.info
    for one, other in zip(heads.parameters(), read.parameters(), strict=True):
        assert torch.equal(one, other)
    hidden, output = torch.randn(4, 8), torch.nn.Linear(8, 20)
    tokens, odds = read.best(hidden, output, 5)
    assert tokens.shape == odds.shape == (4, 3, 5)
    assert torch.equal(odds, odds.sort(dim=-1, descending=True).values) and (odds.sum(-1) <= 1).all()
    expected = heads.logits(hidden, output).softmax(-1).max(-1)
    assert torch.equal(tokens[..., 0], expected.indices.T)


def test_a_head_is_what_the_paper_says() -> None:
    """W2 (x + SiLU(W1 x + b)), section 2.1.1; before training, x itself goes on."""
    heads = MedusaHeads(HeadsInfo(4, 6, 1, 1, False))
    first, last = (dict(heads.named_parameters())[name] for name in ("0.0.linear.weight", "0.1.weight"))
    x = torch.randn(3, 4)
    assert torch.equal(heads.logits(x, torch.nn.Identity())[0], x @ last.T)
    torch.nn.init.normal_(first)
    inner = x @ first.T
    expected = (x + inner * torch.sigmoid(inner)) @ last.T
    torch.testing.assert_close(heads.logits(x, torch.nn.Identity())[0], expected)


def test_heads_beside_the_weights_are_found(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in checkpoint_folder("llama").iterdir():
        (folder / path.name).symlink_to(path)
    assert Engine.from_pretrained(str(folder)).checkpoint.heads is None
    make_heads(folder / "heads")
    found = Engine.from_pretrained(str(folder)).checkpoint
    assert found.heads is not None and found.heads[1].num_heads == 2
    assert Engine.from_pretrained(str(folder), heads="off").checkpoint.heads is None
    assert found.heads_digest == digest_of_heads(*found.heads)


def test_other_heads_have_another_digest(tmp_path: Path) -> None:
    first, second = make_heads(tmp_path / "first"), make_heads(tmp_path / "second")
    info = read_info(first)
    assert digest_of_heads(first, info) == digest_of_heads(second, info)
    weights = load_file(second / WEIGHTS)
    weights["0.0.linear.bias"][0] += 1
    save_file(weights, second / WEIGHTS)
    assert digest_of_heads(first, info) != digest_of_heads(second, info)


@pytest.mark.parametrize("sizes", [{"hidden_size": 48}, {"vocab_size": 301}])
def test_heads_of_another_model_are_refused_with_the_numbers(
    sizes: dict[str, int], checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    heads = make_heads(tmp_path, **sizes)
    hidden_size, vocab_size = sizes.get("hidden_size", 32), sizes.get("vocab_size", VOCAB_SIZE)
    message = (
        f"for a hidden size of {hidden_size} and a vocabulary of {vocab_size}, but the model has a hidden size of 32 "
        f"and a vocabulary of {VOCAB_SIZE}; .* model.heads=off"
    )
    with pytest.raises(CheckpointError, match=message):
        Engine.from_pretrained(str(checkpoint_folder("llama")), heads=str(heads))


def damage(folder: Path, how: str) -> None:
    config = json.loads((folder / CONFIG).read_text())
    match how:
        case "no folder":
            (folder / CONFIG).unlink()
        case "no json":
            (folder / CONFIG).write_text("{")
        case "another kind":
            (folder / CONFIG).write_text(json.dumps({**config, "kind": "eagle"}))
        case "a negative number":
            (folder / CONFIG).write_text(json.dumps({**config, "num_heads": -1}))
        case "a missing tensor":
            (folder / CONFIG).write_text(json.dumps({**config, "num_heads": 3}))
        case "no weights":
            (folder / WEIGHTS).unlink()
        case "damaged weights":
            (folder / WEIGHTS).write_bytes(b"not safetensors")


DAMAGES = {
    "no folder": "config.json cannot be read",
    "no json": "config.json cannot be read",
    "another kind": "must have kind=medusa",
    "a negative number": "num_heads=-1",
    "a missing tensor": "2.0.linear.weight",
    "no weights": "cannot be read",
    "damaged weights": "cannot be read",
}


@pytest.mark.parametrize(("how", "message"), DAMAGES.items())
def test_damaged_heads_are_refused(
    how: str, message: Any, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    damage(make_heads(tmp_path), how)
    with pytest.raises(CheckpointError, match=message) as caught:
        Engine.from_pretrained(str(checkpoint_folder("llama")), heads=str(tmp_path))
    assert "model.heads=" in str(caught.value) and "\n" not in str(caught.value)
