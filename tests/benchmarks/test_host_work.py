"""The benchmark of the host's work runs and writes what it prints. Its figures are not judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import host_work
from benchmarks.steps.batch_host_work import PARTS
from lp.platform.library import library
from tests.benchmarks.results import read


def run(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["host_work", "--output", str(output), *arguments])
    monkeypatch.setattr(host_work, "freeze_heap", lambda: None)  # other tests need their garbage collected
    host_work.main()


def test_host_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tmp_path, "--rows", "1", "8", "--steps", "3", "--sweep-mb", "1")
    table, data = read(tmp_path, "host_work")
    settings = [tuple(cost["setting"].values()) for cost in data["costs"]]
    assert len(set(settings)) == len(settings) == 32
    for cost in data["costs"]:
        assert cost["rows"] <= cost["setting"]["rows"]
        assert list(cost["medians"]) == [*PARTS, "between"]
        # A sequence that is alone is settled and planned in one call, which `schedule` contains.
        assert min(cost["medians"].values()) >= 0 and cost["medians"]["between"] > 0
    assert "temperature 0.8" in table and "| fill" in table.replace("  ", "")
    with_library = [cost for cost in data["costs"] if cost["setting"]["variant"] == "library"]
    assert library() is None or len(with_library) == 16


def test_many_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tmp_path, "--sequences", "1,3", "--steps", "4", "--sweep-mb", "1")
    table, data = read(tmp_path, "host_work-sequences")
    assert len(data["costs"]) == len({tuple(cost["setting"].values()) for cost in data["costs"]}) == 32
    for cost in data["costs"]:
        setting, parts = cost["setting"], cost["parts"]
        assert list(parts) == list(PARTS) and min(parts.values()) >= 0 and parts["schedule"] > 0
        assert cost["rows"] >= setting["sequences"]
        if setting["method"] == "autoregressive":
            assert cost["rows"] == setting["sequences"], "all sequences decode in every step"
    assert "auto, temperature 0.8" in table and "of a sequence" in table


def test_cold_after_a_forward(
    tmp_path: Path, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint_folder("llama")
    run(monkeypatch, tmp_path, "--rows", "4", "--steps", "2", "--forward", str(folder))
    _, data = read(tmp_path, f"host_work-after-{folder.name}")
    assert len(data["costs"]) == 16


@pytest.mark.parametrize(("name", "value"), [("--rows", "0"), ("--steps", "1"), ("--sweep-mb", "0")])
def test_sizes_that_cannot_be(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, name, value)
    assert f"{name} must be at least" in capsys.readouterr().err
