"""Parts that run in processes of their own: benchmark commands, and programs whose first output is awaited."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.real.child import environment, run_benchmark
from benchmarks.real.first_token import seconds_to_output

PYTHON = [sys.executable, "-c"]


def test_a_command_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=r"benchmarks.step_time --rows 1,2 ended with exit code 1"):
        run_benchmark("step_time", "--rows", "1,2")


@pytest.mark.slow
def test_a_benchmark_writes_figures() -> None:
    found = run_benchmark(
        "paper.costs", "--model", str(Path("demo/python-11m").resolve()), "--no-checks", "--degrees", "lp=2"
    )
    assert [cost["mode"] for cost in found["costs"]] == ["lp=2"]


def test_the_first_output_ends_the_wait() -> None:
    slow = [*PYTHON, "import time; print('a', flush=True); time.sleep(1.5)"]
    at_once = seconds_to_output(slow, os.environ)
    assert at_once < seconds_to_output([*PYTHON, "import time; time.sleep(1.5); print('a')"], os.environ)


def test_a_program_without_output_is_told() -> None:
    with pytest.raises(ValueError, match=r"ended with exit code 1: no model"):
        seconds_to_output([*PYTHON, "raise SystemExit('no model')"], os.environ)
    with pytest.raises(ValueError, match=r"ended with exit code 0: it said nothing"):
        seconds_to_output([*PYTHON, "pass"], os.environ)


def test_a_child_finds_this_checkout_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = environment(OMP_NUM_THREADS="2")
    assert variables["PYTHONPATH"] == os.pathsep.join([str(Path.cwd()), "/elsewhere"])
    assert variables["OMP_NUM_THREADS"] == "2"
