"""Graphs on the emulated GPU: their numbers, whose memory they use, and what happens if they cannot be captured."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.arena import Arena, PagedCache
from lp.kv_cache.cache import PAGE, KVCache
from lp.model import compilation
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.fast_forward import FastForward, ForwardFailed, SequenceRows
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.step_tensors import StepBuffer
from lp.model.kernels import AttentionKind
from lp.model.reference import relative_error
from lp.tree import TreeBuilder, chain
from tests.cuda_on_cpu.cuda_api import CUDAGraph
from tests.cuda_on_cpu.launches import Launches, NoHostAccess, observed
from tests.cuda_on_cpu.models import LADDER, ROUNDING, error_of_graphs, fill_cache, load_on_gpu
from tests.cuda_on_cpu.paged import PagedForward
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")


def arena_of(model: CausalModel) -> Arena:
    assert isinstance(model.memory, Arena)
    return model.memory


def paged(cache: KVCache) -> PagedCache:
    assert isinstance(cache, PagedCache)
    return cache


@pytest.mark.slow
def test_graphs_serve_every_sequence_and_nothing_is_captured_later(folders: Folders) -> None:
    """Nine sequences in turn, which grow across the ends of pages, are closed, forked, and begin anew."""
    model = load_on_gpu(folders["llama"])
    assert isinstance(model.fast, CapturedForward) and model.attention_kind is AttentionKind.varlen
    captured = CUDAGraph.num_captured
    assert captured == len(LADDER)
    caches = [model.make_cache() for _ in range(9)]
    for length in (0, 245, 251, 300):  # and one more for each sequence: 0 to 8, 245 to 253, 251 to 259
        for number, cache in enumerate(caches):
            fill_cache(model, cache, length + number)
            for num_rows in (1, 7, 12):
                assert error_of_graphs(model, cache, num_rows) < ROUNDING
        caches[length % 9].release()
        caches[length % 9] = caches[(length + 1) % 9].fork()
    assert isinstance(model.fast, CapturedForward) and CUDAGraph.num_captured == captured
    for cache in caches:
        cache.release()
    assert arena_of(model).allocator.num_free == arena_of(model).num_pages


def test_a_step_beyond_the_ladder_runs_without_a_graph(folders: Folders) -> None:
    model = load_on_gpu(folders["llama"])
    cache = model.make_cache()
    for length in (0, 250):
        fill_cache(model, cache, length)
        assert error_of_graphs(model, cache, LADDER[-1] + 4) < ROUNDING
    assert isinstance(model.fast, CapturedForward)


def test_two_sequences_in_one_step_are_as_each_by_itself(folders: Folders) -> None:
    """What a later scheduler packs: rows of several sequences, each with its own prefix."""
    model = load_on_gpu(folders["llama"], CompileMode.off)
    caches, rng = [model.make_cache(), model.make_cache()], np.random.default_rng(0)
    for cache, length in zip(caches, (300, 9), strict=True):
        fill_cache(model, cache, length)
    trees = [random_tree(rng, 5), random_tree(rng, 7)]
    own = [
        model.forward_eager([SequenceRows(tree, cache, len(tree))])[0]
        for tree, cache in zip(trees, caches, strict=True)
    ]
    given = StepBuffer(16, 2, model.max_length, model.device)
    given.fill([SequenceRows(tree, cache, len(tree)) for tree, cache in zip(trees, caches, strict=True)])
    forward = PagedForward(model.model, arena_of(model), model.attention_kind)
    with torch.inference_mode(), observed(NoHostAccess()):
        answered = torch.arange(12, device=model.device)
        logits = forward(given.on_device, answered)
    assert relative_error(logits.cpu(), torch.cat(own).cpu()) < ROUNDING


def test_a_kept_path_is_copied_by_the_next_step_or_whoever_reads_first(folders: Folders) -> None:
    model = load_on_gpu(folders["llama"], CompileMode.off)
    cache = model.make_cache()
    fill_cache(model, cache, 250)
    tree = random_tree(np.random.default_rng(0), 12)
    model.forward(tree, cache, 1)
    with observed(Launches()) as counted:
        cache.keep([0, 2, 3, 7, 9, 11])
    assert counted.kernels == counted.to_device == 0
    with observed(Launches()) as counted:
        cache.fork()
    assert (counted.kernels, counted.to_device, counted.blocking, counted.waits) == (2, 1, 0, 0), (
        "its one page is shared"
    )
    with observed(Launches()) as counted:
        cache.keep([0, 1])
        cache.fork()
    assert counted.kernels == 1 and counted.to_device == 0, "a fork copies the last page"


@pytest.mark.parametrize("num_kept", slow_except([3, 40], 3))
def test_graphs_copy_what_the_step_before_left(num_kept: int, folders: Folders) -> None:
    """As if only the accepted rows had been written, also if they are more than a graph copies."""
    model = load_on_gpu(folders["llama"])
    caches = [model.make_cache(), model.make_cache()]
    rows = [2 * row for row in range(1, num_kept + 1)]
    tokens = [(7 * row) % 290 + 2 for row in range(2 * num_kept + 1)]
    for cache in caches:
        fill_cache(model, cache, 245)  # the path crosses the end of a page
    builder = TreeBuilder(tokens[0])
    builder.add(tokens[1], 0)
    for row in range(2, len(tokens)):
        builder.add(tokens[row], 0 if row == 2 else row - 2)
    model.forward(builder.build(), caches[0], 1)
    caches[0].keep([0, *rows])
    kept = [tokens[row] for row in (0, *rows)]
    model.forward(chain(kept), caches[1], 1)
    caches[1].keep(range(len(kept)))
    trees = [random_tree(np.random.default_rng(1), 7)] * 2
    found, expected = (model.forward(tree, cache, 7) for tree, cache in zip(trees, caches, strict=True))
    assert paged(caches[0]).num_moves == 0
    assert relative_error(found.cpu(), expected.cpu()) < ROUNDING


def test_growth_moves_no_keys(folders: Folders) -> None:
    model = load_on_gpu(folders["llama"], CompileMode.off)
    caches = [model.make_cache(), model.make_cache()]
    with observed(Launches()) as counted:
        for _ in range(3):
            for cache in caches:
                cache.reserve(cache.length + PAGE)
                cache.length += PAGE
    assert counted.kernels == counted.to_device == 0


def test_a_model_that_cannot_be_captured_keeps_its_own_forward(folders: Folders, caplog: Any) -> None:
    """Dynamic position embeddings look on the host how long the text is."""
    with caplog.at_level(logging.WARNING):
        model = load_on_gpu(folders["llama_with_dynamic_positions"], CompileMode.auto)
        assert model.fast is None
    with pytest.raises(ValueError, match=r"model\.compile=on: a CUDA graph cannot be captured"):
        load_on_gpu(folders["llama_with_dynamic_positions"])


def test_a_capture_that_fails_is_said_once_when_the_model_is_loaded(
    folders: Folders, caplog: Any, monkeypatch: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    monkeypatch.setattr(compilation, "WORTHWHILE", 0)
    with caplog.at_level(logging.WARNING, "lookahead"):
        model = load_on_gpu(folders["llama"], CompileMode.auto)
        fill_cache(model, model.make_cache(), 300)
    (record,) = caplog.records
    assert record.message.startswith("the forward is not compiled: a CUDA graph cannot be captured: CUDA out of memory")


def test_a_graph_that_fails_in_service_is_said_once(folders: Folders, caplog: Any) -> None:
    model = load_on_gpu(folders["llama"])
    cache, tree = model.make_cache(), random_tree(np.random.default_rng(0), 2)
    fill_cache(model, cache, 9)
    expected = model.forward_eager([SequenceRows(tree, cache, 2)])[0].cpu()

    class Broken(FastForward):
        def __call__(self, given: Any) -> Tensor:
            raise ForwardFailed("the driver has gone")

    model.fast = Broken()
    with caplog.at_level(logging.WARNING, "lookahead"):
        for _ in range(2):
            assert torch.equal(model.forward(tree, cache, 2).cpu(), expected)
    (record,) = caplog.records
    assert record.message.startswith("from here on the model's own forward runs")


def test_what_graphs_and_arena_take_is_said_at_start(folders: Folders, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "lookahead"):
        load(ModelSettings(str(folders["llama"]), "bfloat16", "cuda:0", compile=CompileMode.on, kv_memory="0.01"))
    text = caplog.text
    assert re.search(r"keys and values: 0\.00\d+ GB with model\.kv_memory=0\.01, for [\d,]+ tokens: \d+ sequence", text)
    assert re.search(r"captured 4 CUDA graphs in \d+\.\d s; they take \d+\.\d\d GB", text)
