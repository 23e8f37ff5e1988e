"""Fixtures that run a benchmark as its command does, on a tiny model and two prompts."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel.ranks import forking


@pytest.fixture(autouse=True)
def no_imports_in_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has processes that benchmarks spawn forked from a server which has imported what they need."""
    get_context = multiprocessing.get_context
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda method=None: forking() if method == "spawn" else get_context(method)
    )


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


@pytest.fixture
def prompts_folder(tmp_path: Path) -> Path:
    """A folder with prompts of HumanEval and of two categories of Spec-Bench."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n{"prompt": "class Point:\\n"}\n')
    lines = [{"id": name, "category": name, "turns": [f"self.{name}"]} for name in ("writing", "rag", "qa")]
    (folder / "spec_bench.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def on_categories(
    tmp_path: Path, prompts_folder: Path, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """A function that calls a benchmark's main on prompts by category and returns the folder of its results."""

    def run(main: Callable[[], None], *arguments: str) -> Path:
        output = tmp_path / "results"
        shared = ["--prompts", str(prompts_folder), "--model", str(checkpoint_folder("llama")), "--compile", "off"]
        shared += ["--max-new-tokens", "8", "--threads", "1", "--limit", "4", "--output", str(output)]
        monkeypatch.setattr(sys, "argv", ["benchmark", *shared, *arguments])
        main()
        return output

    return run
