"""A server under a changing load: what a minute counts, and a whole short run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import changing_load
from benchmarks.changing_load import Minute
from benchmarks.load.client import RequestRecord
from tests.benchmarks.results import read


def record(first_s: float, per_token_s: float, prompt_tokens: int) -> RequestRecord:
    times = [first_s + number * per_token_s for number in range(5)]
    return RequestRecord("any", 0.0, 0.0, times, times[-1], num_tokens=5, prompt_tokens=prompt_tokens)


def test_a_minute_compares_pairs_and_takes_prompts_out() -> None:
    pairs = [{"auto": record(0.1, 0.01, 100), "autoregressive": record(0.3, 0.02, 300)} for _ in range(5)]
    pairs.append({"auto": record(4.1, 0.01, 100), "autoregressive": record(0.1, 0.05, 100)})
    minute = Minute(pairs, [0] * 6)
    assert minute.speed == pytest.approx((5 * 0.02 + 0.05) / (6 * 0.01))
    assert max(minute.first_tokens_s) == pytest.approx(4.0) and sorted(minute.first_tokens_s)[-2] == pytest.approx(0)
    assert Minute().speed is None


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_folder: Callable[[str], Path]) -> None:
    given = ["--model", str(checkpoint_folder("llama")), "--dtype", "float32", "--minutes", "0.1", "--others", "1"]
    monkeypatch.setattr(sys, "argv", ["changing_load", *given, "--max-new-tokens", "8", "--output", str(tmp_path)])
    changing_load.main()
    table, data = read(tmp_path, "changing-load-*")
    assert "auto over plain" in table and "whose sizes take turns" in table
    (minute,) = data["minutes"]
    assert minute["pairs"] > 0 and minute["speed"] > 0 and min(minute["first_tokens_s"]) >= 0
    assert len(data["quiet"]) == len(data["state"]["curve"])
