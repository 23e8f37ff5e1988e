"""`benchmarks.methods` and `benchmarks.methods.best_first` on a tiny model and few prompts. Figures are not judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.methods import __main__ as command
from benchmarks.methods import best_first
from benchmarks.methods.ways import choose
from benchmarks.shared import methods
from lp.methods.registry import METHODS
from tests.benchmarks.results import read


@pytest.mark.slow
def test_all_methods_side_by_side(on_categories: Callable[..., Path]) -> None:
    folder = on_categories(command.main, "--rounds", "1")
    table, data = read(folder, "methods-*")
    figures = {one["method"]: one for one in data["methods"]}
    chosen = choose([*METHODS], [])
    assert set(chosen.ways) < set(figures) and set(figures) - set(chosen.ways) == set(chosen.references)
    same_text = {name: 4 if way.reference else None for name, (_, way) in chosen.ways.items()}
    assert {name: figures[name]["same_text"] for name in chosen.ways} == same_text
    assert all(figures[name]["num_texts"] == 4 for name in chosen.ways)
    plain = figures["autoregressive"]
    assert plain["tokens_per_step"] == plain["over_autoregressive"] == plain["rows_per_step"] == 1
    assert figures["transformers generate"]["over_generate"] == 1
    assert "| lookahead, (15, 5, 15)" in table and "auto, index was left out: needs index" in table
    assert data["skipped"] and data["prompts"] == 4


@pytest.mark.slow
def test_a_second_run_measures_only_what_is_missing(
    on_categories: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--methods", "jacobi", "--rounds"]
    on_categories(command.main, *options, "1")
    calls: list[int] = []
    measure = command.measure_round

    def counted(*arguments):
        calls.append(1)
        return measure(*arguments)

    monkeypatch.setattr(command, "measure_round", counted)
    on_categories(command.main, *options, "2")
    assert len(calls) == 1
    on_categories(command.main, *options, "2", "--fresh")
    assert len(calls) == 3


def test_a_text_that_differs_fails_the_benchmark(
    on_categories: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_text = methods.decode_text

    def other(*arguments):
        text = decode_text(*arguments)
        text.tokens[-1] += 1
        return text

    monkeypatch.setattr(methods, "decode_text", other)
    with pytest.raises(SystemExit, match="autoregressive, jacobi"):
        on_categories(command.main, "--methods", "jacobi", "--rounds", "1")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--methods", "medium"], "medium"),
        (["--rounds", "0"], "--rounds"),
        (["--part", "heads"], "--part heads is not NAME=PATH"),
        (["--part", "index=/no/such/file"], "/no/such/file"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_mistakes_get_one_message(
    options: list[str], told: str, on_categories: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        on_categories(command.main, *options)
    assert told in f"{stopped.value.code} {capsys.readouterr().err}"


def test_best_first_needs_fewer_calls_for_the_same_text(on_categories: Callable[..., Path]) -> None:
    table, data = read(on_categories(best_first.main), "best_first-*")
    found = [one for own in data["prompts"].values() for one in own]
    assert len(found) == 4 and all(one["same"] for one in found)
    assert all(one["calls"][1] <= one["calls"][0] for one in found)
    assert "| all" in table and "4/4" in table


def test_texts_that_differ_fail_the_comparison_of_searches(
    on_categories: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = best_first.make_search

    def greedy_or_search(arguments, best_first):
        """Beam search with one beam beside best-first search with four: other texts."""
        return made(arguments, True) if best_first else replace(made(arguments, False), num_beams=1)

    monkeypatch.setattr(best_first, "make_search", greedy_or_search)
    with pytest.raises(SystemExit, match="differ"):
        on_categories(best_first.main)
