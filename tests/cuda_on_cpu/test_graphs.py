"""Graphs on the emulated GPU: their numbers, whose memory they use, and what happens if they cannot be captured."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.model.attention import MaskKey
from lp.model.fast import cuda_graphs
from lp.model.fast.choose import CompileMode
from lp.model.fast.on_tensors import OnTensors
from lp.model.fast.traced import TracedStep
from lp.model.kernels import AttentionKind, LayerAttention, UnsupportedAttention
from tests.cuda_on_cpu.cuda_api import CUDAGraph
from tests.cuda_on_cpu.models import ROUNDING, error_of_graphs, fill_cache, load_on_gpu
from tests.lp.test_tree import random_tree

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(autouse=True)
def few_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((1, 2, 8), cuda_graphs.capture_on_gpu))


@pytest.mark.parametrize("length", [1, 255, 256, 257])
def test_graphs_give_the_models_own_logits(length: int, folders: Folders) -> None:
    model = load_on_gpu(folders["llama"])
    assert isinstance(model.fast, OnTensors) and model.attention_kind is AttentionKind.varlen
    cache = model.make_cache(1)
    fill_cache(model, cache, length)
    captured = CUDAGraph.num_captured
    for num_rows in (1, 5, 7, 8):
        assert error_of_graphs(model, cache, num_rows) < ROUNDING
    assert CUDAGraph.num_captured == captured + 2


def test_a_reused_cache_begins_anew(folders: Folders) -> None:
    model = load_on_gpu(folders["llama"])
    cache = model.make_cache(1)
    fill_cache(model, cache, 40)
    model.release(cache)
    again = model.make_cache(1)
    assert again is cache and again.is_written and again.length == 0
    for num_rows in (5, 1, 8):
        assert error_of_graphs(model, again, num_rows) < ROUNDING


def test_soft_capped_attention_is_not_captured(folders: Folders) -> None:
    """No kernel of a graph caps scores. The error of leaving that out may be as small as that of rounding."""
    with pytest.raises(ValueError, match=r"model\.compile=on: a CUDA graph cannot be captured: .*soft-capped"):
        load_on_gpu(folders["gemma2_without_windows"])


def make_step() -> TracedStep:
    """A step of three rows after an empty prefix."""
    key, value = torch.zeros(1, 1, 256, 8, device="cuda"), torch.zeros(1, 1, 256, 16, device="cuda")
    length, mask = torch.zeros((), dtype=torch.int64, device="cuda"), torch.zeros(6, 3, device="cuda")
    masks: dict[MaskKey, Tensor] = {(None, 2): mask}
    return TracedStep(AttentionKind.varlen, masks=masks, keys=[key], values=[value], length=length)


def test_values_of_another_dimension_are_not_captured() -> None:
    step, query, value = make_step(), torch.ones(1, 2, 3, 8, device="cuda"), torch.ones(1, 1, 3, 16, device="cuda")
    with pytest.raises(UnsupportedAttention, match="keys have 8 dimensions and its values 16"):
        step.attend(0, query, query[:, :1], value, LayerAttention(1.0))
    with pytest.raises(UnsupportedAttention, match="soft-capped"):
        step.attend(0, query, query[:, :1], query[:, :1], LayerAttention(1.0, softcap=30.0))


def test_a_model_that_cannot_be_captured_keeps_its_own_forward(folders: Folders, caplog: Any) -> None:
    """Dynamic position embeddings look on the host how long the text is."""
    with caplog.at_level(logging.WARNING):
        model = load_on_gpu(folders["llama_with_dynamic_positions"], CompileMode.auto)
        assert model.fast is None
    with pytest.raises(ValueError, match=r"model\.compile=on: a CUDA graph cannot be captured"):
        load_on_gpu(folders["llama_with_dynamic_positions"])


def test_a_capture_that_fails_in_service_is_said_once(folders: Folders, caplog: Any, monkeypatch: Any) -> None:
    model = load_on_gpu(folders["llama"])
    cache = model.make_cache(1)
    fill_cache(model, cache, 9)
    tree = random_tree(np.random.default_rng(0), 2)
    expected = model.forward_eager(tree, cache, 2)[0].cpu()

    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    with caplog.at_level(logging.WARNING, "lookahead"):
        for _ in range(2):
            assert torch.equal(model.forward(tree, cache, 2).cpu(), expected)
    (record,) = caplog.records
    assert record.message.startswith("from here on the model's own forward runs")
    assert record.message.endswith("a CUDA graph cannot be captured: CUDA out of memory")


def test_graphs_go_with_their_cache(folders: Folders) -> None:
    """A later cache may lie where a dropped one lay; the graphs of that one would write all over it."""
    model = load_on_gpu(folders["llama"])
    assert isinstance(model.fast, OnTensors) and isinstance(model.fast.inner, cuda_graphs.CapturedForward)
    for num_tokens in (9, 300, 9):
        cache = model.make_cache(1)
        fill_cache(model, cache, num_tokens)
        assert error_of_graphs(model, cache, 5) < ROUNDING
    graphs = model.fast.inner._by_cache
    assert len(graphs) == 1
    memory = [ref(tensor) for tensor in (*cache.keys.values(), *cache.values.values())]
    cache.reserve(cache.capacity)  # it grows
    gc.collect()
    assert not graphs and not any(tensor() for tensor in memory)
    assert error_of_graphs(model, cache, 5) < ROUNDING
