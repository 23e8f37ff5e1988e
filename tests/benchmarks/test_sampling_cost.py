"""The benchmark of sampling costs runs and writes what it prints. Its figures are not judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import sampling_cost
from tests.benchmarks.results import read


def run(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sampling_cost", "--output", str(output), *arguments])
    sampling_cost.main()


def test_sampling_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tmp_path, "--vocab", "2000", "--rows", "1", "5", "--seconds", "0.1")
    table, data = read(tmp_path, "sampling_cost")
    assert {(cost["vocab_size"], cost["rows"]) for cost in data["costs"]} == {(2000, 1), (2000, 5)}
    with_processors = {cost["setting"] for cost in data["costs"] if cost["warpers_ms"] is not None}
    assert with_processors == {setting.name for setting in sampling_cost.SETTINGS} - {"greedy", "greedy, 8 candidates"}
    assert "2,000 x 5" in table and "top-p 0.95" in table


@pytest.mark.parametrize("name", ["--vocab", "--rows", "--accepted"])
def test_sizes_that_cannot_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, name, "0")
    assert f"{name} must be at least 1, not 0" in capsys.readouterr().err
