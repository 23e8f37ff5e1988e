"""The comparison of `auto` with plain decoding runs on a tiny model, and says what plain decoding itself varies by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import auto_gain
from benchmarks.shared.categories import ALL
from tests.benchmarks.results import read


def test_auto_gain(on_categories: Callable[..., Path]) -> None:
    folder = on_categories(auto_gain.main, "--rounds", "2", "--temperatures", "0", "1")
    table, data = read(folder, "auto_gain-*")
    assert set(data) >= {"0", "1"} and len(data["0"]) == 2
    totals = data["0"][0][ALL]
    assert set(totals) == set(auto_gain.METHODS)
    assert totals["auto"]["same_text"] == totals["autoregressive again"]["same_text"] == 4
    assert "8 of 8 at T=0, 8 of 8 at T=1" in table
    assert "plain at T=1, tokens/s" in table
