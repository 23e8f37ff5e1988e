"""The projection to GPUs decodes real texts, resumes, says that it is projected, and agrees with published speeds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gpu_projection
from benchmarks.projections.gpus import A100_NVLINK, GPT_FAST, GPUS
from benchmarks.projections.modelled_step import Setting, fastest, shares_of, step_seconds
from benchmarks.projections.shared_trees import SharedTrees, add_up, record_texts
from benchmarks.shared.shapes import SHAPES, make_config
from lp import Auto, Engine, Sampling, Stopping
from tests.benchmarks.results import read, read_plot
from tests.slow import slow_except

DEGREES = gpu_projection.DEGREES
PROMPTS = [("a", [(3 + 7 * i) % 41 + 2 for i in range(20)]), ("b", [(5 + 3 * i) % 37 + 2 for i in range(30)])]


def test_trees_are_those_of_ordinary_decoding(llama: Engine) -> None:
    recorded = record_texts(llama.checkpoint, PROMPTS, 16, DEGREES, 24)
    plain = Engine(llama.checkpoint)
    for one, (category, prompt) in zip(recorded, PROMPTS, strict=True):
        completion = plain.generate(
            prompt, decode=Auto(rows=16), sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(24)
        )
        assert (one.category, one.steps) == (category, completion.stats.steps - 1)
        assert 0 < completion.stats.steps - 1 <= one.tokens < len(completion.token_ids)
        assert one.largest[1] <= 16 * one.steps
        assert one.largest[1] > one.largest[2] > one.largest[4] >= one.largest[8] >= one.steps
        assert one.host_s > 0
    total = add_up(recorded, DEGREES)[16]
    assert (total.steps, total.largest[2]) == (
        sum(one.steps for one in recorded), sum(one.largest[2] for one in recorded)
    )  # fmt: skip


def test_autoregressive_steps_have_one_row(llama: Engine) -> None:
    for one in record_texts(llama.checkpoint, PROMPTS, 1, DEGREES, 12):
        assert one.tokens == one.steps == one.largest[1]


@pytest.mark.parametrize("name", slow_except(GPT_FAST, "llama-3.1-8b"))
def test_the_model_of_a_step_gives_published_speeds(name: str) -> None:
    for tp, share in shares_of(make_config(SHAPES[name]), DEGREES).items():
        computed = 1 / step_seconds(share, tp, 1, Setting(A100_NVLINK, 1, 0.0))
        assert computed == pytest.approx(GPT_FAST[name][tp], rel=0.1)


@pytest.mark.parametrize("gpu", slow_except(GPUS, GPUS[0]), ids=lambda gpu: gpu.name)
def test_what_each_way_of_using_devices_does_to_a_step(gpu) -> None:
    shares, setting = shares_of(make_config(SHAPES["llama-7b"]), DEGREES), Setting(gpu, 1024, 100.0)
    few, many = (step_seconds(shares[1], 1, rows, setting) for rows in (1, 4096))
    assert few < step_seconds(shares[1], 1, 1, Setting(gpu, 4096, 100.0)) < many
    assert step_seconds(shares[2], 2, 1, setting) < few
    trees = {1: SharedTrees("all", 1, 10, 10, dict.fromkeys(DEGREES, 10), 0.0)}
    trees[64] = SharedTrees("all", 64, 30, 10, {1: 640, 2: 340, 4: 190, 8: 110}, 0.01)
    alone, shared = (fastest(shares, trees, lp, 1, setting) for lp in (1, 8))
    assert (shared.rows, shared.largest, shared.tokens_per_step) == (64, 11.0, 3.0)
    assert shared.step_ms == pytest.approx(1e3 * step_seconds(shares[1], 1, 11, setting) + 1 + 0.1)
    assert alone.step_ms == pytest.approx(1e3 * step_seconds(shares[1], 1, 64, setting) + 1)


@pytest.mark.slow
def test_every_title_says_projected_and_a_stopped_run_goes_on(
    prompts_folder: Path, checkpoint_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results"
    options = ["--prompts", str(prompts_folder), "--model", str(checkpoint_folder("llama")), "--rows", "1,8"]
    options += ["--limit", "4", "--max-new-tokens", "8", "--output", str(output), "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    own, decoded = gpu_projection.record_texts, []

    def stop_after_one(checkpoint, prompts, rows, *others):
        if decoded:
            raise KeyboardInterrupt
        decoded.append(rows)
        return own(checkpoint, prompts, rows, *others)

    monkeypatch.setattr(gpu_projection, "record_texts", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        gpu_projection.main()
    monkeypatch.setattr(gpu_projection, "record_texts", lambda *given: decoded.append(given[2]) or own(*given))
    gpu_projection.main()
    assert decoded == [1, 8]
    table, data = read(output, "gpu_projection-*")
    assert all("PROJECTED" in line for line in table.splitlines() if line.startswith("# "))
    assert all("PROJECTED" in line or "Measured" in line for line in table.splitlines() if line.startswith("## "))
    assert all("PROJECTED tokens/s" in line for line in table.splitlines() if line.startswith("| GPU"))
    assert read_plot(output, "gpu_projection-*").count("PROJECTED") == len(GPUS)
    assert "lp=2 x tp=2" in table and "nccl/issues/1439" in table
    assert set(data["projected"]) == set(GPT_FAST) and not list(output.glob("*.partial.json"))
    assert "def f" not in json.dumps(data)


def test_rows_without_autoregressive_decoding_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "--model", "demo/python-11m", "--rows", "8,16"])
    with pytest.raises(SystemExit):
        gpu_projection.main()
    assert "--rows must begin with 1" in capsys.readouterr().err
