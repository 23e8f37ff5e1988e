"""Files on top of benchmarks/ and some in its folders are commands; `python -m benchmarks` lists them."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as commands

ON_TOP = sorted(path.stem for path in commands.FOLDER.glob("*.py") if not path.stem.startswith("_"))
PACKAGES = ["families", "fixed_point", "gpu", "load", "methods", "structured"]
IN_FOLDERS = [
    *PACKAGES,
    "methods.best_first",
    "paper.ablation",
    "paper.costs",
    "paper.sampling_quality",
    "paper.scaling_law",
    "projections.gpu_step",
    "projections.load",
    "steps.long_prompt",
    "steps.stream_memory",
    "steps.trace_cost",
]
NAMES = [*ON_TOP, *IN_FOLDERS]
FILES = {commands.FOLDER / f"{name.replace('.', '/')}{'/__main__' * (name in PACKAGES)}.py" for name in NAMES}
HELPERS = sorted(path for path in commands.FOLDER.rglob("*.py") if path.parent != commands.FOLDER and path not in FILES)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    commands.main()


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]], ids=str)
def test_every_command_is_listed_with_one_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, *arguments)
    listed = capsys.readouterr().out
    assert "python -m benchmarks NAME --help" in listed
    lines = {line.split()[0]: line for line in listed.splitlines() if line.startswith("    ")}
    assert {name for name in lines if name != "python"} == set(NAMES)
    for name in NAMES:
        sentence = lines[name].split(maxsplit=1)[1]
        assert sentence.endswith(".") and 20 < len(sentence) < 100


def test_an_unknown_name_gets_the_list_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "tokens_per_second")
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "there is no benchmark 'tokens_per_second'" in said and all(f"    {name} " in said for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}{'.__main__' if name in PACKAGES else ''}")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m benchmarks.{name}")
    assert f"    python -m benchmarks.{name} " in shown  # an example


def test_a_command_runs_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "random_model", "--help")
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m benchmarks.random_model")


@pytest.mark.parametrize("path", HELPERS, ids=lambda path: str(path.relative_to(commands.FOLDER)))
def test_helpers_use_no_command(path: Path) -> None:
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not imported & {"benchmarks", *(f"benchmarks.{name}" for name in NAMES)}
