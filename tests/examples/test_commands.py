"""The programs accept every command of the examples and documents: its settings compose and are in range."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launch import bench, cache
from launch.config import configuration, process
from tests.examples.commands import Command, find_commands
from tests.slow import exhaustive_except

COMMANDS = find_commands()
FIRST_OF_EACH_FILE = {command.file: command for command in reversed(COMMANDS)}.values()


def load(command: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the settings that the program reads from a command. The program does nothing else."""
    loaded: list[Any] = []

    def main(name: str, schema: type, run: Any, usage: str, arguments: Sequence[str] | None = None) -> int:
        loaded.append(configuration.load(name, schema, sys.argv[1:] if arguments is None else arguments))
        return 0

    def measure() -> int:
        loaded.extend(configuration.typed(point, bench.BenchSettings) for point in bench.compose_points())
        return 0

    def keep(settings: Any) -> int:
        loaded.append(settings)
        return 0

    monkeypatch.setattr(process, "main", main)
    monkeypatch.setattr(cache, "run", keep)  # it does without process.main, which knows models
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(sys, "argv", [command.program, *command.arguments])
    assert import_module(f"launch.{command.program}").main() == 0
    return loaded[0]


def check(settings: Any) -> None:
    """Raises ValueError if a setting of a group is out of range."""
    for group in ("server", "supervisor", "ray"):
        if hasattr(settings, group):
            getattr(settings, group).check()


@pytest.mark.parametrize("command", exhaustive_except(COMMANDS, quick=FIRST_OF_EACH_FILE), ids=str)
def test_a_command_composes(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("keys.txt").write_text("a-key\n")  # which the examples name
    if command.program == "ray_job" and not find_spec("ray"):
        pytest.skip("the extra ray is not installed")
    check(load(command, monkeypatch))


@pytest.mark.parametrize("wrong", ["parallel.rank=4", "server.port=99999", "launcher=locally"])
def test_a_wrong_setting_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=wrong.partition("=")[0].rpartition(".")[2]):
        check(load(Command("a file", "serve", (wrong,)), monkeypatch))


def test_each_example_that_starts_a_program_is_read():
    assert {command.file for command in COMMANDS} >= {
        "README.md of the project",
        "usage.md of the project",
        "README.md",
        "docker/Dockerfile",
        "kuberay/rayjob.yaml",
        "ray/cluster.yaml",
        "slurm/ray.sbatch",
        "slurm/torchrun.sbatch",
        "systemd/lookahead-parallel.service",
    }


def test_examples_start_ranks_in_each_way():
    started = {command.file: command for command in COMMANDS}
    assert "launcher=local" in started["systemd/lookahead-parallel.service"].arguments
    assert "launcher=local" in started["docker/Dockerfile"].arguments
    assert started["slurm/ray.sbatch"].program == "ray_job"
