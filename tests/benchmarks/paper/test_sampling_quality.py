"""A small run of the whole comparison between plain sampling and sampling by lookahead decoding."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.paper import sampling_quality


@pytest.mark.slow
def test_lookahead_samples_the_texts_of_plain_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--limit", "2", "--max-new-tokens", "12", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["sampling_quality", *arguments])
    sampling_quality.main()
    rows = json.loads((tmp_path / "sampling_quality-python-11m.json").read_text())["rows"]
    assert [(row["method"], row["temperature"]) for row in rows][:2] == [
        ("autoregressive", 0.0),
        ("lookahead (15, 5, 15)", 0.0),
    ]
    assert len(rows) == 6 and rows[0]["texts"] == rows[1]["texts"] == rows[2]["texts"]  # greedy, generate included
    assert rows[3]["texts"] == rows[4]["texts"] and rows[3]["ROUGE-1"] == rows[4]["ROUGE-1"]
    assert "| lookahead (15, 5, 15) |" in (tmp_path / "sampling_quality-python-11m.md").read_text()
