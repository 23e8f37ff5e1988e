"""Graphs give the logits of the model's own forward, whatever the length of the prefix, the heads, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from tests.cuda_on_cpu.models import ROUNDING, error_of_graphs, fill_cache, load_on_gpu

pytestmark = pytest.mark.gpu

LENGTHS = (0, 1, 255, 256, 257)
ROWS = (1, 5, 8)


class Counted:
    """A fast forward that counts its calls. Everything else is the inner one's."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.inner(*arguments)


@pytest.fixture(
    params=[(groups, size) for groups in (1, 4, 8) for size in (64, 128, 256)], ids=lambda p: f"{p[0]}-{p[1]}"
)
def folder(request: pytest.FixtureRequest, shape_folder: Callable[[int, int], Path]) -> Path:
    return shape_folder(*request.param)


@pytest.fixture
def small(shape_folder: Callable[[int, int], Path]) -> Path:
    return shape_folder(4, 64)


def load(folder: Path) -> tuple[CausalModel, Counted]:
    """A model with graphs, and the count of the steps that ran as graphs."""
    model = load_on_gpu(folder)
    counted: Any = Counted(model.fast)
    model.fast = counted
    return model, counted


def reused(model: CausalModel, num_tokens: int = 3) -> KVCache:
    """A cache that another sequence has used, empty again."""
    cache = model.make_cache(1)
    fill_cache(model, cache, num_tokens)
    cache.release()
    again = model.make_cache(1)
    assert again.length == 0
    return again


def check(model: CausalModel, cache: KVCache, where: str) -> None:
    for num_rows in ROWS:
        error = error_of_graphs(model, cache, num_rows)
        assert error < ROUNDING, f"{where}: {num_rows} rows are off by {error:.3f}"


@pytest.mark.parametrize("length", LENGTHS)
def test_graphs_give_the_models_own_logits(length: int, folder: Path, gpu: Any) -> None:
    model, counted = load(folder)
    cache = reused(model)
    fill_cache(model, cache, length)
    before = counted.calls
    check(model, cache, f"{length} cached")
    assert counted.calls == before + len(ROWS)


def test_a_reused_cache_forgets_the_sequence_before(small: Path, gpu: Any) -> None:
    model, _ = load(small)
    for length in (300, 40, 0, 257):
        cache = reused(model, 300)
        fill_cache(model, cache, length)
        check(model, cache, f"{length} cached, after 300 of another sequence")
        cache.release()


def test_a_cache_grows_under_its_graphs(small: Path, gpu: Any) -> None:
    model, _ = load(small)
    cache = reused(model)
    for length in (10, 250, 256, 520, 1030):
        fill_cache(model, cache, length)
        check(model, cache, f"grown to {length}")


def test_nine_sequences_take_turns(small: Path, gpu: Any) -> None:
    model, _ = load(small)
    caches = [reused(model) if number == 0 else model.make_cache(1) for number in range(9)]
    for number, cache in enumerate(caches):
        fill_cache(model, cache, 20 + 31 * number)
    for turn in range(2):
        for number, cache in enumerate(caches):
            check(model, cache, f"sequence {number}, turn {turn}")
            fill_cache(model, cache, cache.length + 7)
