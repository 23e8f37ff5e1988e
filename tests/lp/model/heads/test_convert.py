"""The converter of published heads: what it reads, what it refuses, and that it calls nothing that a pickle names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lp.model.errors import CheckpointError
from lp.model.heads.convert import convert, read_tensors
from lp.model.heads.files import load_heads, read_info

HIDDEN, VOCAB = 8, 20


class ResBlock(nn.Module):
    """As in FasterDecoding's medusa_model.py."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.linear(x))


def publish(num_heads: int = 3, num_layers: int = 1) -> nn.ModuleList:
    """Heads as FasterDecoding makes them."""
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Sequential(*(ResBlock(HIDDEN) for _ in range(num_layers)), nn.Linear(HIDDEN, VOCAB, bias=False))
        for _ in range(num_heads)
    )


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_converted_heads_compute_the_same(name: str, num_layers: int, tmp_path: Path) -> None:
    published = publish(num_layers=num_layers)
    tensors = published.state_dict()
    torch.save(tensors, tmp_path / name) if name.endswith(".pt") else save_file(tensors, tmp_path / name)
    info = convert(tmp_path, tmp_path / "heads")
    assert (info.num_heads, info.num_layers, info.hidden_size, info.vocab_size) == (3, num_layers, HIDDEN, VOCAB)
    heads = load_heads(tmp_path / "heads", read_info(tmp_path / "heads"), torch.float32, torch.device("cpu"))
    x = torch.randn(5, HIDDEN)
    with torch.no_grad():
        torch.testing.assert_close(heads.logits(x, nn.Identity()), torch.stack([head(x) for head in published]))


class Malicious:
    """A pickle of this writes a file when it is read without care."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_malicious_pickle_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / "medusa_lm_head.pt"
    torch.save({**publish().state_dict(), "more": Malicious(trace)}, file)
    torch.load(file, weights_only=False)
    assert trace.exists(), "it must do harm where nobody takes care, or the test proves nothing"
    trace.unlink()
    with pytest.raises(CheckpointError, match="no file of tensors alone") as caught:
        read_tensors(file)
    assert "\n" not in str(caught.value) and not trace.exists()


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in publish().state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"lm_head.weight": torch.zeros(2, 2)}, "no Medusa heads.*it has lm_head.weight"),
        ({}, "it has nothing"),
        (without("1.0.linear.bias"), "1.0.linear.bias is missing"),
        (without("1.1.weight"), "no Medusa heads|1.1.weight is missing|not one of"),
        ({**publish().state_dict(), "norm": torch.zeros(2)}, "norm is not one of a Medusa head"),
        (
            {**publish().state_dict(), "2.1.weight": torch.zeros(VOCAB + 1, HIDDEN)},
            r"2.1.weight has the shape \[21, 8\]",
        ),
        ([torch.zeros(2)], "no dictionary of tensors"),
        ({"epoch": 3}, "no dictionary of tensors"),
    ],
)
def test_what_is_no_medusa_head_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "heads.pt")
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "heads.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"neither a zip nor a pickle"])
def test_what_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "medusa_lm_head.pt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_tensors(file)
    with pytest.raises(CheckpointError):
        read_tensors(tmp_path)


@pytest.mark.slow
def test_the_command_says_what_it_made_or_why_not(tmp_path: Path) -> None:
    torch.save(publish().state_dict(), tmp_path / "medusa_lm_head.pt")
    command = [sys.executable, "-m", "lp.model.heads.convert"]
    made = subprocess.run([*command, str(tmp_path), str(tmp_path / "heads")], capture_output=True, text=True)
    assert made.returncode == 0 and "3 heads of 1 layers for a hidden size of 8" in made.stdout
    refused = subprocess.run([*command, str(tmp_path / "none"), str(tmp_path)], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
