"""The soak command runs for a few seconds and writes what it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import soak as soak_command
from tests.benchmarks.faults import pretended_ranks
from tests.benchmarks.results import read
from tests.launch.server.checkpoint import write


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
    assert soaked["holdings"][-1]["memory_mb"] > 10 and soaked["holdings"][-1]["processes"] == 2
    assert "second quarter" in table
