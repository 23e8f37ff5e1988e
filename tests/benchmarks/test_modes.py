"""The comparison of modes runs real ranks and played ones, and more ranks than cores for their texts alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import modes
from benchmarks.shared.result_pages import read_tables
from tests.benchmarks.results import read

ARGUMENTS = ["--dtype", "float32", "--ranks", "2,4", "--modes", "pp,lpxtp", "--streams", "2", "--rounds", "1"]


@pytest.mark.slow
def test_modes_are_measured_and_modelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_folder: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})  # so that four ranks are too many
    model = str(checkpoint_folder("llama"))
    arguments = [*ARGUMENTS, "--max-new-tokens", "8", "--prompt-tokens", "20", "--model", model]
    monkeypatch.setattr(sys, "argv", ["modes", *arguments, "--output", str(tmp_path)])
    modes.main()
    table, data = read(tmp_path, "modes-*-2-4-ranks")
    measured, modelled, texts, prompts = read_tables(next(tmp_path.glob("*.md")))
    shown = {"method", "streams"}
    assert {*measured[0]} == shown | {"one rank, tokens/s", "one rank, 2 threads", "pp=2"}
    assert {*modelled[0]} == shown | {"pp=2", "lp=2 x tp=2"} and len(measured) == len(modelled) == 2
    assert all("x (" in row["pp=2"] and "(" not in row["lp=2 x tp=2"] for row in modelled)
    assert "pp=4 is left out: " in table, "the model has three layers"
    assert {row["ranks"] for row in texts} == {"one rank, 2 threads", "pp=2", "lp=2 x tp=2"}
    assert all(row[name] == "2/2" for row in texts for name in ("autoregressive, 2", "auto, 2"))
    assert "lp=2 x tp=2, modelled" in prompts[0] and "lp=2 x tp=2" not in prompts[0]
    assert "lp=2 x tp=2 | auto | 2" in data["rates"] and "lp=2 x tp=2, modelled | auto | 2" in data["rates"]


def test_groups_that_ranks_do_not_fill_are_left_out() -> None:
    assert modes.layout_of("lpxtp", 2) is modes.layout_of("lpxtp", 5) is None
    layout = modes.layout_of("lpxtp", 6)
    assert layout and layout.name == "lp=3 x tp=2" and layout.degrees == {"lp": 3, "tp": 2}
