"""Kernels whose last program adds up what the others have left, captured and replayed, and a model that was timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp.model import compilation
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode, make_fast
from lp.model.gpu import attention, product_times
from lp.model.gpu.attention import MOST_SPLIT_TILES, attend
from lp.model.gpu.product_times import READINGS_AHEAD, RUNS, time_on_gpu
from lp.model.gpu.products import Products
from lp.model.gpu.split_product import MOST_TILES, multiply_in_splits
from lp.model.gpu.step_tensors import StepTensors
from lp.platform.disk_cache import VARIABLE
from tests.cuda_on_cpu.launches import Launches, observed
from tests.cuda_on_cpu.models import ROUNDING, error_of_graphs, fill_cache, load_on_gpu
from tests.lp.model.gpu.test_attention import Shape, dense, make_case
from tests.lp.test_tree import random_tree

Folders = dict[str, Path]
SPLIT = "triton.multiply_in_splits"


def test_a_graph_of_a_split_product_is_replayed(triton: None) -> None:
    """The counters are as they were, so each replay finds them so."""
    random = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(4, 3, 300, generator=random), torch.randn(70, 300, generator=random)
    x, counters = inputs[0].to("cuda"), torch.zeros(MOST_TILES, dtype=torch.int32, device="cuda")
    on_gpu = weight.to("cuda").t()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply_in_splits(x, on_gpu, None, 4, counters)
    for one in inputs:
        x.copy_(one.to("cuda"))
        graph.replay()
        torch.testing.assert_close(out.cpu().double(), one.double() @ weight.double().t(), rtol=1e-5, atol=1e-4)
        assert not counters.cpu().any()


def test_a_graph_of_split_attention_is_replayed(triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PROGRAMS", 16)
    shape, tree = Shape(groups=3, head_dim=16), random_tree(np.random.default_rng(1), 2)
    case, step = make_case(shape, tree, 700), shape.step()
    arena, parts = case.pages.arena, [getattr(case.given, one.name).to("cuda") for one in fields(StepTensors)]
    query, keys, values = (one.to("cuda") for one in (case.query, arena.keys[0], arena.values[0]))
    counters = torch.zeros(MOST_SPLIT_TILES, dtype=torch.int32, device="cuda")
    out = torch.empty(2, step.out.width, device="cuda")
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(step, query, keys, values, StepTensors(*parts), counters, out)
    assert graph.recording.num_kernels == 1, "no other kernel merges"
    for factor in (1.0, -0.5, 2.0):
        other = replace(case, query=factor * case.query)
        query.copy_(other.query.to("cuda"))
        graph.replay()
        torch.testing.assert_close(out.cpu(), dense(shape, other, tree), atol=2e-5, rtol=2e-5)
        assert not counters.cpu().any()


def test_a_function_is_timed_while_the_second_cache_holds_no_weights(cuda: None) -> None:
    x = torch.ones(300, 300, device="cuda")

    def slow() -> None:
        time.sleep(0.02)
        x.mul_(2.0)

    with observed(Launches()) as counted:
        assert 0.01 < time_on_gpu(slow) < 1.0
    assert counted.by_name["aten.mul_.Tensor"] == RUNS
    assert counted.by_name["aten.sum.default"] == RUNS + READINGS_AHEAD
    assert (counted.waits, counted.to_host) == (1, 0), "the host waits once, for all runs"


def prefer_split(run: Callable[[], object]) -> float:
    """A clock by which the kernel that splits the inputs is the fastest."""
    with observed(Launches()) as counted:
        run()
    return 1.0 if SPLIT in counted.by_name else 3.0


def products_of(model: CausalModel, num_rows: int) -> dict[str, int]:
    """The kernels of products in a step that has more rows than any graph."""
    cache = model.make_cache(1)
    fill_cache(model, cache, 3)
    with observed(Launches()) as counted:
        model.forward(random_tree(np.random.default_rng(0), num_rows), cache, num_rows)
    return {name: count for name, count in counted.by_name.items() if "mm" in name or name == SPLIT}


@pytest.mark.slow
def test_a_model_runs_the_kernels_that_its_timing_chose(
    folders: Folders,
    triton: None,
    two_rungs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They pass the check at start. The emulated GPU has no cuBLASLt, which is left out."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(Products.__init__, "__defaults__", ((1, 16),))  # the interpreter takes long
    monkeypatch.setattr(product_times, "MOST_S", 1000.0)
    monkeypatch.setattr(compilation, "time_on_gpu", prefer_split)
    with caplog.at_level(logging.INFO, "lookahead"):
        model = load_on_gpu(folders["mistral"], dtype="float32")
    assert "another kernel than cuBLAS's is chosen for 10 of 10 shapes and numbers of rows of products" in caplog.text
    cache = model.make_cache(1)
    fill_cache(model, cache, 5)
    assert max(error_of_graphs(model, cache, rows) for rows in (1, 5)) < ROUNDING
    assert products_of(model, 9) == {SPLIT: 4 * model.num_layers + 1}


@pytest.mark.slow
def test_an_invariant_model_and_an_emulated_gpu_time_nothing(
    folders: Folders, triton: None, two_rungs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    model = load_on_gpu(folders["mistral"], dtype="float32")
    assert SPLIT not in products_of(model, 9) and not (tmp_path / "products").exists()

    def refuse(run: Callable[[], object]) -> float:
        raise AssertionError("the products of an invariant forward are its own kernels")

    monkeypatch.setattr(compilation, "time_on_gpu", refuse)
    make_fast(model, CompileMode.on, None, is_invariant=True)
    assert model.fast is not None and model.fast.is_invariant
