"""The checkpoint on which the programs are tested, and launch/generate.py called in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from launch import generate
from launch.config import engine_settings, process
from launch.generate import GenerateSettings

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path]) -> str:
    return str(checkpoint_folder("llama"))


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Main]:
    """Calls launch/generate.py in this process, in an empty folder: arguments -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str) -> tuple[int, str, str]:
        engine_settings.register("generate", GenerateSettings)
        capfd.readouterr()  # what fixtures have written
        code = process.main("generate", GenerateSettings, generate.run, "usage", ["parallel.threads=1", *arguments])
        return code, *capfd.readouterr()

    yield call
    torch.set_num_threads(1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
