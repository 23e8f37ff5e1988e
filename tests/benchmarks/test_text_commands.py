"""Benchmarks run on a tiny model and two prompts and write what they print. Their figures are not judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import exchange_cost, half_precision, tokens_per_step
from benchmarks.fixed_point import __main__ as fixed_point
from benchmarks.shared import methods
from benchmarks.steps import long_prompt
from tests.benchmarks.results import read
from tests.slow import slow_except


@pytest.mark.parametrize("temperature", slow_except(["0", "0.8"], "0.8"))
def test_tokens_per_step(temperature: str, on_prompts: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = on_prompts(tokens_per_step.main, "--temperature", temperature)
    table, data = read(folder, f"tokens_per_step-*-T{temperature}")
    figures = {row["method"]: row for row in data["figures"]}
    assert set(tokens_per_step.METHODS) < set(figures)
    assert figures["autoregressive"]["tokens_per_step"] == 1.0
    assert all(figures[method]["same_text"] == 2 for method in tokens_per_step.METHODS)
    assert "lookahead (15, 5, 15)" in table and "cpu:" in table
    assert "lookahead (15, 5, 15)" in capsys.readouterr().out


def test_the_oracle_accepts_at_least_what_the_trees_yield(on_prompts: Callable[..., Path]) -> None:
    table, _ = read(on_prompts(tokens_per_step.main, "--oracle"), "tokens_per_step-*-T0")
    lines = table.split("tokens not proposed")[1].splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| auto")]
    assert [row[0].strip() for row in rows] == ["auto, 64 rows", "auto, 128 rows"]
    assert all(1 <= float(row[1]) <= float(row[2]) for row in rows)


def test_a_text_that_differs_fails_the_benchmark(
    on_prompts: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_counted = methods.generate_counted

    def other(*arguments):
        text = generate_counted(*arguments)
        text.tokens[-1] += 1
        return text

    monkeypatch.setattr(methods, "generate_counted", other)
    with pytest.raises(SystemExit) as stopped:
        on_prompts(tokens_per_step.main)
    assert stopped.value.code == 1


def test_half_precision(on_prompts: Callable[..., Path]) -> None:
    table, data = read(on_prompts(half_precision.main), "half_precision*")
    assert "bfloat16" in table
    assert data["run"]["torch"]


@pytest.mark.slow
def test_exchange_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--rounds", "10", "--work-ms", "0", "--exchanges", "shm", "gloo", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["exchange_cost", *arguments])
    exchange_cost.main()
    table, data = read(tmp_path, "exchange_cost-2-ranks")
    assert [cost["exchange"] for cost in data["costs"]] == ["shm", "gloo"]
    assert "gloo" in table


@pytest.mark.slow
def test_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    arguments = ["--model", folder, "--dtype", "float32", "--tokens", "200", "--rounds", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["long_prompt", *arguments])
    long_prompt.main()
    table, data = read(tmp_path, "long_prompt-*")
    assert "All ways yield the same token: yes" in table and "split" in table
    assert {len(taken) for taken in data["seconds"].values()} == {1} and data["times"]["extras"]["copied_token"] > 0


def test_fixed_point(on_prompts: Callable[..., Path]) -> None:
    folder = on_prompts(fixed_point.main, "--size", "6", "--windows", "2")
    table, data = read(folder, "fixed-point-*")
    plain = data["means"]["Gauss-Seidel"]
    assert plain["calls"] == 6 and plain["settled"] == plain["right"] == [0, 1, 2, 3, 4, 5, 6]
    assert all(mean["calls"] <= 6 for mean in data["means"].values())
    assert set(data["texts"]) == {"autoregressive", "jacobi, window=2", "jacobi, window=auto"}
    assert "| Jacobi with a pool" in table and "2/2" in table
    assert next(folder.glob("*-strip.svg")).read_text().startswith("<svg")
