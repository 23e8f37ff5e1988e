"""The command that writes a random model never writes into a folder that holds something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import random_model

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2}  # fmt: skip


def test_a_folder_with_something_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["random_model", str(tmp_path)])
    with pytest.raises(SystemExit):
        random_model.main()
    assert "is not empty; name another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
