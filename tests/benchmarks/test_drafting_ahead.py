"""The measurement of drafting ahead runs with real ranks of a tiny model, whose texts are those of plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import drafting_ahead
from benchmarks.shared.categories import ALL
from tests.benchmarks.results import read


@pytest.mark.slow
def test_drafting_ahead(
    tmp_path: Path, prompts_folder: Path, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--prompts", str(prompts_folder), "--model", str(checkpoint_folder("llama")), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmark", *given, "--limit", "4", "--rounds", "1", "--max-new-tokens", "24"])
    drafting_ahead.main()
    table, data = read(tmp_path, "drafting_ahead-*")
    totals = data["totals"][0][ALL]
    assert set(totals) == set(drafting_ahead.WAYS)
    assert len({(one["same_text"], one["tokens"]) for one in totals.values()}) == 1
    assert 0 <= data["reached"][drafting_ahead.AHEAD] <= 1 and len(data["costs"]) == 4
    assert "over the best of one rank" in table
