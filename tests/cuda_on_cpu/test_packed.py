"""Steps of many sequences on the emulated GPU: one replay, and for each sequence what it gets by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.model.gpu import cuda_graphs
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.forward import FusedForward
from lp.model.reference import relative_error
from lp.tree import chain
from tests.cuda_on_cpu.cuda_api import CUDAGraph
from tests.cuda_on_cpu.models import ROUNDING, load_on_gpu
from tests.cuda_on_cpu.test_architectures import CAPTURED
from tests.cuda_on_cpu.test_fused import FUSED
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

Folders = dict[str, Path]
# Cached tokens of the sequences: none, one, and around the end of a page.
LENGTHS = (256, 0, 257, 1, 255, 9, 255, 0, 30)


def capture_once(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
    """Without warm-up runs, which would take the interpreter long."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    return graph.replay, result


@pytest.fixture(autouse=True)
def two_rungs(few_rungs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((8, 32), capture_once))


def make_caches(model: CausalModel, lengths: tuple[int, ...]) -> list[KVCache]:
    caches = [model.make_cache() for _ in lengths]
    for cache, length in zip(caches, lengths, strict=True):
        if length:
            prefix = chain([(7 * n + 3) % 290 + 2 for n in range(length)])
            model.forward_eager([SequenceRows(prefix, cache, 1)])
            cache.keep(range(length))
    return caches


def packed(caches: list[KVCache]) -> list[SequenceRows]:
    """Rows of each sequence in turn: a tree, a tree under a trunk, a part of a prompt that is only fed, one row."""
    rng = np.random.default_rng(len(caches))
    made: list[SequenceRows] = []
    for number, cache in enumerate(caches):
        tree, tokens = random_tree(rng, 1 + number % 4), [5 + number, 7, 11]
        match number % 4:
            case 0:
                made.append(SequenceRows(tree, cache, len(tree)))
            case 1:
                made.append(SequenceRows(tree.under(tokens), cache, len(tree)))
            case 2:
                made.append(SequenceRows(chain(tokens), cache, 0))
            case _:
                made.append(SequenceRows(chain(tokens[:1]), cache, 1))
    return made


def error_of_packing(model: CausalModel, lengths: tuple[int, ...]) -> float:
    """How far the logits of sequences in one step are from those of each by itself, by the model's own forward.

    Two steps: what the first has written, and what is kept of it, counts in the second.
    """
    caches, twins = make_caches(model, lengths), make_caches(model, lengths)
    found, expected = [], []
    for _ in range(2):
        given, alone = packed(caches), packed(twins)
        found.append(model.forward_many(given).cpu())
        for rows in alone:
            expected.append(model.forward_eager([rows])[0].cpu())
        for rows in [*given, *alone]:
            rows.cache.keep(rows.tree.path(len(rows.tree) - 1))
    assert len(torch.cat(found)) == sum(map(len, expected))
    return relative_error(torch.cat(found), torch.cat(expected))


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("count", slow_except([1, 2, 5, 9], 5))
def test_sequences_in_one_step_are_as_each_by_itself(count: int, folders: Folders) -> None:
    model = load_on_gpu(folders["llama"])
    captured = CUDAGraph.num_captured
    assert error_of_packing(model, LENGTHS[:count]) < ROUNDING
    assert CUDAGraph.num_captured == captured and isinstance(model.fast, CapturedForward)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", slow_except(sorted(CAPTURED - {"llama"}), "qwen3_moe"))
def test_every_architecture_with_graphs_packs(name: str, folders: Folders) -> None:
    assert error_of_packing(load_on_gpu(folders[name]), LENGTHS[:5]) < ROUNDING


@pytest.mark.usefixtures("cuda")
@pytest.mark.slow
def test_more_rows_than_the_ladder_has_pack(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((2,), capture_once))
    model = load_on_gpu(folders["llama"])
    assert error_of_packing(model, LENGTHS) < ROUNDING
    assert isinstance(model.fast, CapturedForward)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ladder"),
    [
        ("llama", (2,)),  # without a graph
        *((name, (16,)) for name in FUSED),
    ],
)
def test_fused_kernels_pack(
    name: str, ladder: tuple[int, ...], folders: Folders, triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sliding windows and soft-capping are in the graph, too."""
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", (ladder, capture_once))
    model = load_on_gpu(folders[name])
    assert isinstance(model.fast, CapturedForward) and isinstance(model.fast._forward, FusedForward)
    captured = CUDAGraph.num_captured
    assert error_of_packing(model, (256, 0, 1, 257)) < ROUNDING
    assert CUDAGraph.num_captured == captured == 1
