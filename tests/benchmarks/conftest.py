"""A fixture that runs a benchmark as its command does, on a tiny model and two prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def on_prompts(
    tmp_path: Path, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """A function that calls a benchmark's main on two prompts and returns the folder of its results."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):"}\n{"prompt": "class Point:"}\n')

    def run(main: Callable[[], None], *arguments: str) -> Path:
        output = tmp_path / "results"
        shared = ["--prompts", str(prompts), "--model", str(checkpoint_folder("llama")), "--max-new-tokens", "12"]
        monkeypatch.setattr(sys, "argv", ["benchmark", *shared, "--output", str(output), *arguments])
        main()
        return output

    return run
