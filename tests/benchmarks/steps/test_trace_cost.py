"""The benchmark of traces: every method is measured, and chunks stay small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.steps import trace_cost
from lp.trace import RecordedStep


def test_methods_have_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: trace_cost.METHODS[name] for name in ("autoregressive", "auto, 128 rows")}
    monkeypatch.setattr(trace_cost, "METHODS", few)
    monkeypatch.setattr(trace_cost, "time_off", lambda number: 0.5 * number)
    monkeypatch.setattr(sys, "argv", ["trace_cost", "--max-new-tokens", "24", "--output", str(tmp_path)])
    trace = RecordedStep.trace
    trace_cost.main()
    assert RecordedStep.trace is trace  # what was timed is as it was
    data = json.loads((tmp_path / "trace_cost.json").read_text(encoding="utf-8"))
    assert [cost["method"] for cost in data["costs"]] == list(few)
    for cost in data["costs"]:
        assert 0 < cost["warm_us"][0] <= cost["before_us"][1] + cost["after_us"][1]
        assert 0 < cost["most_bytes"] <= 1000 and cost["rows"] >= 1
    assert data["costs"][-1]["cut"] > 0 == data["costs"][0]["cut"]
    table = (tmp_path / "trace_cost.md").read_text(encoding="utf-8")
    assert "0.50 us in a step of 1, 32.00 us in a step of 64" in table


def test_too_short_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["trace_cost", "--max-new-tokens", "3"])
    with pytest.raises(SystemExit):
        trace_cost.main()
