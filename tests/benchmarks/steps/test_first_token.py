"""The time to the first token is that of processes as users start them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.steps import first_token
from benchmarks.steps.first_token import StartUp, describe_start_up, measure_start_up
from lp import cache_files


def test_both_caches_are_measured_and_the_users_own_is_left_alone(
    checkpoint_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache_files.VARIABLE, str(tmp_path / "cache"))
    settings = [f"model.path={checkpoint_folder('llama')}", "model.compile=off"]
    found = measure_start_up(settings, threads=1, rounds=1)
    assert min(found.importing, found.cold, found.warm) > 0
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"gguf", "packages"}


def test_a_run_that_fails_is_reported() -> None:
    with pytest.raises(ValueError, match="ended with 1: no model"):
        first_token._seconds(["-c", "raise SystemExit('no model')"], dict(os.environ))


def test_the_table_names_all_three() -> None:
    assert describe_start_up(StartUp(2.51, 8.0, 5.0)).splitlines()[-1] == "| 2.5 | 8.0 | 5.0 |"
