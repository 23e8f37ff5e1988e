"""The soak command runs for a few seconds and writes what it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import soak as soak_command
from tests.benchmarks.faults import pretended_ranks
from tests.benchmarks.results import read
from tests.launch.server.checkpoint import write


@pytest.mark.exhaustive
def test_the_command_soaks_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_command, "serving", pretended_ranks.serving)
    monkeypatch.setattr(soak_command, "SAMPLE_S", 0.2)
    arguments = ["--model", str(write(tmp_path / "model")), "--ranks", "2", "--minutes", "0.05", "--every", "0.5"]
    monkeypatch.setattr(sys, "argv", ["soak", *arguments, "--clients", "2", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):  # the resources of the test's own process may grow meanwhile
        soak_command.main()
    table, data = read(tmp_path, "soak-model-2-ranks-shm")
    soaked = data["soak"]
    assert not any(answer["wrong"] for answer in soaked["answers"]) and len(soaked["answers"]) >= 4
    assert len(soaked["killed"]) >= 3 and soaked["epochs"] > 3
    assert soaked["holdings"][-1]["memory_mb"] > 10 and max(held["processes"] for held in soaked["holdings"]) == 2
    assert "second quarter" in table


def test_a_soak_without_kills_ends_after_so_many_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_command, "serving", pretended_ranks.serving)
    monkeypatch.setattr(soak_command, "SAMPLE_S", 0.05)
    arguments = ["--model", str(write(tmp_path / "model")), "--ranks", "2", "--minutes", "2", "--every", "0"]
    arguments += ["--requests", "40", "--answers", "2", "3", "--clients", "4", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["soak", *arguments])
    with pytest.raises(SystemExit):
        soak_command.main()
    table, data = read(tmp_path, "soak-model-2-ranks-shm-undisturbed")
    soaked = data["soak"]
    assert 40 <= len(soaked["answers"]) < 44 and soaked["minutes"] < 2 and not soaked["killed"]
    assert "no rank killed" in table and soaked["holdings"][-1]["ranks_memory_mb"] > 0
    assert not any(answer["wrong"] for answer in soaked["answers"])


@pytest.mark.parametrize("wrong", [["--every", "-1"], ["--requests", "-1"], ["--answers", "0", "3"], ["--ranks", "1"]])
def test_arguments_that_make_no_sense_are_named(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", *wrong])
    with pytest.raises(SystemExit) as stopped:
        soak_command.main()
    assert stopped.value.code == 2 and wrong[0] in capsys.readouterr().err
