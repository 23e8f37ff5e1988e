"""The comparison of modes runs real ranks and played ones, and more ranks than cores for their texts alone."""

from __future__ import annotations

import argparse
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
    measured, over_plain, modelled, modelled_over_plain, steps, texts, prompts = read_tables(
        next(tmp_path.glob("*.md"))
    )
    shown = {"method", "streams"}
    assert {*measured[0]} == shown | {"one rank, tokens/s", "one rank, 2 threads", "pp=2"}
    assert {*modelled[0]} == shown | {"one rank, tokens/s", "pp=2", "lp=2 x tp=2"}
    assert len(measured) == len(modelled) == 2
    assert [row["method"] for row in [*over_plain, *modelled_over_plain]] == ["auto", "auto"]
    assert all(row["one rank"].startswith("1.00 (") for row in steps if row["method"] == "autoregressive")
    assert "pp=4 is left out: " in table, "the model has three layers"
    played = {"one rank, modelled", "lp=2 x tp=2, modelled"}
    assert {row["ranks"] for row in texts} == {"one rank, 2 threads", "pp=2", "lp=2 x tp=2"} | played
    assert all(row[name] == "2/2" for row in texts for name in ("autoregressive, 2", "auto, 2"))
    assert "lp=2 x tp=2, modelled" in prompts[0] and "lp=2 x tp=2" not in prompts[0]
    assert "lp=2 x tp=2 | auto | 2" in data["decoded"] and "lp=2 x tp=2, modelled | auto | 2" in data["decoded"]


def test_windows_are_modelled_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_folder: Callable[[str], Path]
) -> None:
    arguments = ["--clocks", "modelled", "--dtype", "float32", "--ranks", "3", "--modes", "lp", "--streams", "1"]
    arguments += ["--methods", "lookahead:5,4,5", "prompt_lookup:4,5", "--texts", "2", "--rounds", "1"]
    model = str(checkpoint_folder("llama"))
    arguments += ["--max-new-tokens", "8", "--longest-prompt", "20", "--model", model, "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["modes", *arguments])
    modes.main()
    modelled, categories, steps, texts = read_tables(next(tmp_path.glob("modes-*-3-ranks-modelled.md")))
    names = ["lookahead (5, 4, 5)", "prompt_lookup (4, 5)"]
    assert [row["method"] for row in categories] == sorted(2 * names), "each has two texts, of two categories"
    assert len({row["category"] for row in categories}) == 2
    assert [row["method"] for row in modelled] == names and all(row["lp=3"].endswith("x") for row in modelled)
    assert [row["one rank, modelled"] == row["lp=3, modelled"] for row in steps] == [True, True]
    assert texts == [{"ranks": "lp=3, modelled", **{f"{name}, 1": "2/2" for name in names}}]


@pytest.mark.parametrize("text", ["beam", "lookahead:5,x", "prompt_lookup:1,2,3,4,5,6,7,8"])
def test_methods_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        modes.read_method(text)


def test_groups_that_ranks_do_not_fill_are_left_out() -> None:
    assert modes.layout_of("lpxtp", 2) is modes.layout_of("lpxtp", 5) is None
    layout = modes.layout_of("lpxtp", 6)
    assert layout and layout.name == "lp=3 x tp=2" and layout.degrees == {"lp": 3, "tp": 2}
