"""Kernels whose last program adds up what the others have stored: the same bits each time, and what timing chooses."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from lp.model.gpu import attention, product_times
from lp.model.gpu.attention import MOST_SPLIT_TILES, attend
from lp.model.gpu.product_times import choose_products, time_on_gpu
from lp.model.gpu.products import Products
from lp.model.gpu.split_product import MOST_TILES, multiply_in_splits, split_counts
from lp.model.gpu.step_tensors import StepTensors
from lp.platform.disk_cache import VARIABLE
from tests.lp.model.gpu.test_attention import Shape, dense, make_case
from tests.lp.test_tree import random_tree

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
# A race would not show in every run.
TIMES = 300
ALLOWED = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 0.03}


@pytest.mark.parametrize("dtype", list(ALLOWED), ids=str)
@pytest.mark.parametrize("num_rows", [1, 16, 33, 128])
def test_split_products_have_the_same_bits_each_time(num_rows: int, dtype: torch.dtype) -> None:
    counters = torch.zeros(MOST_TILES, dtype=torch.int32, device="cuda")
    for num_inputs, num_outputs in ((4096, 4096), (1000, 130)):
        x = torch.randn(num_rows, num_inputs, device="cuda").to(dtype)
        weight = torch.randn(num_outputs, num_inputs, device="cuda").to(dtype).t()
        expected = x.double() @ weight.double()
        for num_splits in split_counts(num_rows, num_inputs, num_outputs, dtype.itemsize):
            first = multiply_in_splits(x, weight, None, num_splits, counters)
            error = (first.double() - expected).norm() / expected.norm()
            assert error < ALLOWED[dtype], f"{num_splits} shares"
            for _ in range(TIMES):
                assert torch.equal(multiply_in_splits(x, weight, None, num_splits, counters), first)
    assert not counters.any()


@pytest.mark.parametrize("num_rows", [1, 2])
def test_attention_that_merges_its_shares_has_the_same_bits_each_time(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, tree = Shape(heads=8, groups=4, head_dim=128), random_tree(np.random.default_rng(0), num_rows)
    case, step = make_case(shape, tree, 5000), shape.step()
    arena = case.pages.arena
    given = StepTensors(*(getattr(case.given, one.name).cuda() for one in fields(StepTensors)))
    query, keys, values = (one.cuda() for one in (case.query, arena.keys[0], arena.values[0]))
    counters = torch.zeros(MOST_SPLIT_TILES, dtype=torch.int32, device="cuda")

    def found() -> torch.Tensor:
        out = torch.empty(num_rows, step.out.width, device="cuda")
        attend(step, query, keys, values, given, counters, out)
        return out

    first = found()
    torch.testing.assert_close(first.cpu(), dense(shape, case, tree), atol=1e-4, rtol=1e-4)
    assert all(torch.equal(found(), first) for _ in range(TIMES)) and not counters.any()
    monkeypatch.setattr(attention, "MOST_MERGED", 0)
    torch.testing.assert_close(found(), first, atol=1e-6, rtol=1e-5)


def test_products_are_timed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(product_times, "MOST_S", 100.0)  # the kernels are compiled as well
    device = torch.device("cuda", torch.cuda.current_device())
    weights = [(torch.randn(n, k, device=device).bfloat16().t(), None) for k, n in ((4096, 6144), (4096, 4096))]
    with caplog.at_level(logging.INFO, "lookahead"):
        choose_products(Products(device), weights, device, time_on_gpu)
        products = Products(device)
        choose_products(products, weights, device, lambda run: pytest.fail("they are timed again"))
    assert "(timed in " in caplog.text and caplog.text.rstrip().endswith("(timed at an earlier start)")
    for weight, _ in weights:
        x = torch.randn(16, 4096, device=device).bfloat16()
        found, expected = products(x, weight, None), x.double() @ weight.double()
        assert (found.double() - expected).norm() / expected.norm() < ALLOWED[torch.bfloat16]
