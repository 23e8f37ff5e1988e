"""Rows of many sequences in one run of the native code: each gets, to the last bit, what it gets alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.kv_cache.contiguous import ContiguousCache
from lp.model.causal import CausalModel
from lp.model.cpu.forward import NativeForward
from lp.model.fast_forward import SequenceRows
from lp.tree import TokenTree, chain
from tests.lp.model.cpu.shapes import SHAPES
from tests.lp.test_tree import random_tree
from tests.models import SLIDING_WINDOW, VOCAB_SIZE
from tests.slow import slow_except

LoadBoth = Callable[[str, str], tuple[CausalModel, NativeForward]]


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def filled_cache(native: NativeForward, rng: np.random.Generator, length: int) -> ContiguousCache:
    cache = ContiguousCache(native.num_layers, 1)
    if length:
        cache.reserve(length)
        native([SequenceRows(chain(rng.integers(2, VOCAB_SIZE, length).tolist()), cache, 0)])
        cache.keep(range(length))
    return cache


def some_step(rng: np.random.Generator) -> tuple[TokenTree, int]:
    """Rows, and for how many of the last of them logits are wanted: a tree, one under a trunk, one row, or a chunk."""
    kind, trunk = rng.integers(5), rng.integers(2, VOCAB_SIZE, int(rng.integers(1, 40))).tolist()
    tree = random_tree(rng, int(rng.integers(1, 50)))
    match kind:
        case 0:
            return tree, len(tree)
        case 1:
            return tree.under(trunk), len(tree)
        case 2:
            return chain(trunk[:1]), 1
        case 3:
            return chain(trunk), 0
    return tree, int(rng.integers(0, len(tree) + 1))


def written(rows: SequenceRows) -> Tensor:
    """Keys and values of all layers that the rows have left in the cache."""
    end = rows.cache.length + len(rows.tree)
    return torch.cat([store[0, :, :end].flatten() for store in stores(rows.cache)])


def stores(cache: KVCache) -> list[Tensor]:
    """[1, heads, capacity, head_dim] keys of all layers, then their values."""
    assert isinstance(cache, ContiguousCache)
    return [*cache.keys.values(), *cache.values.values()]


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except(
        [("llama", "float32"), ("llama", "bfloat16"), ("llama", "float16"), ("mistral", "float32"),
         ("gemma2", "bfloat16"), ("odd", "float32"), *((name, "bfloat16") for name in SHAPES)],
        ("mistral", "float32"), ("odd", "float32"), ("gemma2", "bfloat16"),
    ),
)  # fmt: skip
def test_each_sequence_gets_what_it_gets_alone(name: str, dtype: str, load_both: LoadBoth) -> None:
    _, native = load_both(name, dtype)
    rng = np.random.default_rng(3)
    for number, num_sequences in enumerate((1, 2, 3, 5, 9, 17)):
        lengths = rng.choice([0, 1, 31, 32, 33, SLIDING_WINDOW, 63, 64, 150], num_sequences).tolist()
        caches = [filled_cache(native, rng, length) for length in lengths]
        given = [SequenceRows(tree, cache, count) for cache in caches for tree, count in [some_step(rng)]]
        for rows in given:
            rows.cache.reserve(len(rows.tree))
        with threads(1):
            alone, left = [native([rows]).clone() for rows in given], [written(rows) for rows in given]
        with torch.inference_mode():  # what the run before has written must not be what is read
            for rows in given:
                for store in stores(rows.cache):
                    store[:, :, rows.cache.length :] = torch.nan
        with threads(1 + number % 3):
            together = native(given)
        assert torch.equal(together, torch.cat(alone))
        assert all(torch.equal(written(rows), expected) for rows, expected in zip(given, left, strict=True))


def test_the_order_of_sequences_does_not_matter(load_both: LoadBoth) -> None:
    _, native = load_both("llama", "float32")
    rng = np.random.default_rng(4)
    given = [SequenceRows(chain([5 + n, 6]), filled_cache(native, rng, 7 * n), n % 3) for n in range(6)]
    for rows in given:
        rows.cache.reserve(2)
    counts = [rows.num_logits for rows in given]
    forwards = native(given).split(counts)
    backwards = native(given[::-1]).split(counts[::-1])
    assert all(torch.equal(one, other) for one, other in zip(forwards, backwards[::-1], strict=True))


def test_a_step_may_answer_no_row(load_both: LoadBoth) -> None:
    for name, dtype in (("llama", "float32"), ("windows", "bfloat16")):
        _, native = load_both(name, dtype)
        given = [SequenceRows(chain([3 + n] * 4), ContiguousCache(native.num_layers, 4), 0) for n in range(3)]
        for rows in given:
            rows.cache.reserve(4)
        assert native(given).shape == (0, VOCAB_SIZE)
        assert all(bool(written(rows).any()) for rows in given)
