"""The measurement of a real model runs on a tiny one, goes on where it was stopped, and tells what failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import real_model
from benchmarks.real import curves, first_token, ranks, tasks, texts
from launch.sweep.records import Run, TextRecord
from tests.benchmarks.results import read, read_plot

CURVE = {
    "bytes_per_s": 10e9,
    "flops_per_s": 100e9,
    "points": [{"rows": 16, "floor_s": 0.05, "median_s": 0.1}],
    "notes": [],
}


def run_of(num_ranks, decode, settings) -> Run:
    """Stands in for real ranks: two are half as fast again as one."""
    texts = [TextRecord(str(number), 5, 60, 20, 0.1, 1.0, "same") for number in range(2)]
    return Run("key", 0, "done", texts=texts, seconds=12.0 / (1 + 0.5 * (num_ranks - 1)))


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for all that is measured in other processes."""
    monkeypatch.setattr(curves, "run_benchmark", lambda *options: CURVE)
    monkeypatch.setattr(ranks, "measure_once", run_of)
    monkeypatch.setattr(ranks, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(first_token, "seconds_to_output", lambda command, variables: 2.5)


def kept_in(folder: Path) -> dict:
    (path,) = folder.glob("*.measurements.json")
    return json.loads(path.read_text())["measurements"]


@pytest.mark.exhaustive
def test_all_parts_are_measured_once(
    on_categories: Callable[..., Path], stood_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = on_categories(real_model.main)
    table, data = read(folder, "real_model-*[!s]")
    assert set(data["parts"]) == set(real_model.PARTS) and data["failed"] == []
    for title in ("Identity", "Differing texts", "Tokens per step, greedy", "Tokens per step, T = 0.8", "Which source"):
        assert f"## {title}" in table
    assert "| auto, 64 rows" in table and "4/4" in table
    assert table.count("## Tokens per second") == 2
    assert "1.50x" in table and "50%" in table and "2.5" in table
    assert "speed over generate, bfloat16" in read_plot(folder, "real_model-*")
    methods = data["parts"]["texts"]["bfloat16, T=0, HumanEval, raw"]["methods"]
    assert texts.OTHER_KERNEL in methods and set(texts.METHODS) < set(methods)

    def again(*arguments):
        raise AssertionError("this is kept already")

    monkeypatch.setattr(texts, "measure", again)
    monkeypatch.setattr(ranks, "measure", again)
    before = kept_in(folder)
    assert on_categories(real_model.main) == folder and kept_in(folder) == before
    with pytest.raises(AssertionError):  # other settings need other figures
        on_categories(real_model.main, "--max-new-tokens", "9", "--only", "texts")


def test_a_stopped_run_goes_on_where_it_was(
    on_categories: Callable[..., Path], stood_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    measured: list[str] = []

    def measure(model, asked):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(asked["dtype"])
        return CURVE

    monkeypatch.setattr(curves, "measure", measure)
    with pytest.raises(SystemExit) as stopped:
        on_categories(real_model.main, "--only", "step curve")
    assert stopped.value.code == 130
    assert "interrupted; the same command does what is left" in capsys.readouterr().err
    folder = tmp_path / "results"
    assert len(kept_in(folder)) == 3
    monkeypatch.setattr(curves, "measure", lambda model, asked: measured.append("later") or CURVE)
    on_categories(real_model.main, "--only", "step curve")
    shown = capsys.readouterr().err
    assert measured[3:] == ["later"] and "[1/1] step curve/" in shown
    on_categories(real_model.main, "--only", "step curve", "--fresh")
    assert measured[3:] == ["later"] * 5


def test_a_failure_is_told_and_does_not_stop_the_rest(
    on_categories: Callable[..., Path], stood_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: [0])
    with pytest.raises(SystemExit) as stopped:
        on_categories(real_model.main, "--only", "ranks", "--only", "first token")
    assert stopped.value.code == 1
    table, data = read(tmp_path / "results", "real_model-*[!s]")
    assert "- FAILED: ranks/float32, auto: two ranks of one core each need two cores" in table
    assert set(data["parts"]) == {"first token"} and "- texts: 0 of 12 measurements are done" in table


def test_texts_that_differ_in_float32_fail(
    on_categories: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = texts.measure

    def other(loaded, dtype, temperature, asked):
        if temperature or dtype != "float32":
            raise ValueError("not now")
        figures = measure(loaded, dtype, temperature, asked)
        figures["methods"]["auto"][0]["digest"] = "another"
        return figures

    monkeypatch.setattr(texts, "measure", other)
    with pytest.raises(SystemExit) as stopped:
        on_categories(real_model.main, "--only", "texts", "--limit", "1")
    assert stopped.value.code == 1
    table, _ = read(tmp_path / "results", "real_model-*[!s]")
    assert "- FAILED: texts of auto differ from those of generate in float32" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/dev/null/x"], "--output /dev/null/x is not a folder that can be made"),
        (["--only", "everything"], "argument --only: invalid choice: 'everything'"),
        (["--rounds", "0"], "--rounds and --sampled must be at least 1"),
        (["--model", "package:nothing"], "is unknown; the packaged models are"),
    ],
)
def test_bad_options_are_told(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["real_model", "--output", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        real_model.main()
    assert stopped.value.code not in (0, None)
    assert message in f"{stopped.value.code}\n{capsys.readouterr().err}"


def test_a_full_disk_is_told_and_what_was_measured_stays(
    on_categories: Callable[..., Path], stood_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_categories(real_model.main, "--only", "first token")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tasks.os, "replace", full)
    with pytest.raises(SystemExit, match=r"cannot be written: No space left on device; what it held is kept"):
        on_categories(real_model.main, "--only", "ranks")
    assert {key.split("/")[0] for key in kept_in(tmp_path / "results")} == {"first token"}
