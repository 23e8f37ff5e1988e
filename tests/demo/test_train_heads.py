"""demo/train_heads.py trains heads for a checkpoint with a tokenizer of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lp import Autoregressive, Engine, Medusa
from tests.demo.scripts import imported
from tests.models import save_checkpoint

END = "<|end_of_text|>"


@pytest.fixture(scope="module")
def command() -> Iterator[ModuleType]:
    with imported("train_heads") as module:
        yield module


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny model whose end-of-sequence token has another name than the demo model's."""
    folder = save_checkpoint(tmp_path / "model")
    for file in folder.glob("tokenizer*.json"):
        file.write_text(file.read_text().replace("</s>", END))
    return folder


def test_heads_for_a_checkpoint_with_its_own_end_of_text(
    command: ModuleType, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    monkeypatch.setattr(command, "standard_library", lambda: (sources, sources[-1:]))
    monkeypatch.setattr(command, "PACKAGES", ())
    monkeypatch.setattr(command, "STRIDE", 1)
    heads = tmp_path / "heads"
    arguments = ["--model", str(checkpoint), "--heads", "2", "--minutes", "0.02", "--output", str(heads)]
    monkeypatch.setattr("sys.argv", ["train_heads.py", *arguments])
    command.main()
    report = json.loads((heads / "training.json").read_text())
    assert len(report["held_out_accuracy"]) == 2 and report["steps"] > 0
    engine = Engine.from_pretrained(str(checkpoint), device="cpu", heads=str(heads))
    texts = [engine.generate("def", max_new_tokens=24, decode=how).token_ids for how in (Autoregressive(), Medusa())]
    assert texts[0] == texts[1]
