"""The step time command measures a tiny model, takes its steps apart and writes the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks import step_time
from tests.benchmarks.results import read, read_plot

SHORT = ["--rounds", "2", "--limit", "1", "--max-new-tokens", "24", "--ranks", "1", "--device", "cpu"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that calls the benchmark's main and returns the folder of its results."""

    def call(*arguments: str) -> Path:
        output = tmp_path / "results"
        monkeypatch.setattr(sys, "argv", ["step_time", *SHORT, "--output", str(output), *arguments])
        step_time.main()
        return output

    return call


@pytest.mark.slow
def test_a_checkpoint_is_measured_and_taken_apart(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = checkpoint_folder("llama")
    output = run("--model", str(folder), "--rows", "1,64", "--cached", "8,40", "--compile", "off",
                 "--attention", "two_part", "sdpa", "flash")  # fmt: skip
    table, figures = read(output, "step_time-*-float32")
    places = [(way, cached, rows) for cached in (8, 40) for rows in (1, 64)
              for way in ("two_part, eager", "sdpa, eager")]  # fmt: skip
    assert [(point["way"], point["cached"], point["rows"]) for point in figures["points"]] == places
    lines = [json.loads(line) for line in next(output.glob("*.jsonl")).read_text().splitlines()]
    assert all(len(line["seconds"]) == 4 and min(line["seconds"]) > 0 for line in lines) and len(lines) == len(places)
    assert len(figures["splits"]) == 8  # two variants, two lengths, one row and 64
    for one in figures["splits"]:
        parts = [one["attention"], one["products"], one["head"]]
        assert min(parts) > 0 and sum(parts) + one["rest"] == pytest.approx(one["whole"])
    assert figures["host"]["rows_per_step"] <= 64
    assert "attention flash, compile off: left out" in figures["notes"][-1]
    for said in ("On 40 cached tokens", "of bandwidth", "64 rows / 1", "the host's work is", "left out"):
        assert said in table
    assert "floor" in read_plot(output, "step_time-*")


def test_a_configuration_gets_random_weights_and_as_many_positions_as_are_asked_for(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    config = checkpoint_folder("gpt2") / "config.json"
    most = json.loads(config.read_text())["n_positions"]
    output = run("--config", str(config), "--dtype", "bfloat16", "--rows", "1,2", "--cached", str(most),
                 "--compile", "off", "--no-parts")  # fmt: skip
    _, figures = read(output, "step_time-config-bfloat16")
    assert [point["rows"] for point in figures["points"]] == [1, 2] and not figures["splits"]


def test_steps_that_ranks_share_are_measured_by_their_largest_parts(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = checkpoint_folder("llama")
    output = run("--model", str(folder), "--rows", "64", "--cached", "570", "--share", "2,4", "--compile", "off",
                 "--no-parts")  # fmt: skip
    table, figures = read(output, "step_time-*-float32-shared")
    assert [point["rows"] for point in figures["points"]] == [20, 36, 64]
    assert "4 ranks, rows" in table and "and 25 us of an exchange" in table


def test_more_positions_than_a_checkpoint_has_are_refused(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(SystemExit, match=r"ask for 100256 positions, but .* has \d+: lower them"):
        run("--model", str(checkpoint_folder("llama")), "--cached", "100000")


def test_a_model_that_no_variant_can_run_ends_the_program(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(SystemExit, match=r"in none of these variants:\nattention flash"):
        run("--model", str(checkpoint_folder("llama")), "--attention", "flash", "--compile", "off", "--rows", "1")


def test_other_work_on_the_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.1, 3.0, 3.0))
    assert step_time.note_other_work() == []
    monkeypatch.setattr(psutil, "getloadavg", lambda: (3.0, 0.1, 0.1))
    assert "load 3.0 on 2 cores" in step_time.note_other_work()[0]


@pytest.mark.parametrize("given", ["", "1,x", "0,4", "-3"])
def test_rows_that_are_no_numbers_are_refused(
    given: str, run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(f"--rows={given}")
    assert "is not a list of whole numbers above 0" in capsys.readouterr().err
