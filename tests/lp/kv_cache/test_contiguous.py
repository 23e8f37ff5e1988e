"""The static KV cache: written in place, rows kept in order, grown without loss."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from lp.kv_cache.cache import PAGE, LayerShape
from lp.kv_cache.contiguous import ContiguousCache

HEADS, HEAD_DIM, LAYERS = 2, 4, 3


def rows_of(tokens: list[int]) -> Tensor:
    """[1, heads, R, head_dim] keys in which each row's values are its token."""
    return torch.tensor(tokens, dtype=torch.float32)[None, None, :, None].expand(1, HEADS, -1, HEAD_DIM)


@torch.inference_mode()
def run_step(cache: ContiguousCache, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Writes a step's rows to all layers; returns the keys and values that the last layer sees."""
    cache.reserve(len(tokens))
    for layer in range(LAYERS):
        seen = cache.update(rows_of(tokens), -rows_of(tokens), layer)
    return seen


@torch.inference_mode()
def contents(cache: ContiguousCache) -> list[int]:
    """The cached tokens."""
    run_step(cache, [999])
    keys, values = cache.update(rows_of([999]), -rows_of([999]), 0)
    assert torch.equal(keys, -values)
    return keys[0, 0, :-1, 0].int().tolist()


def test_rows_come_after_the_prefix_and_are_kept_in_order() -> None:
    cache = ContiguousCache(LAYERS, capacity=20)
    keys, _ = run_step(cache, [1, 2, 3])
    assert keys.shape == (1, HEADS, 3, HEAD_DIM)
    cache.keep(range(3))
    keys, values = run_step(cache, [10, 11, 12, 13, 14])
    assert keys[0, 0, :, 0].tolist() == [1, 2, 3, 10, 11, 12, 13, 14]
    assert torch.equal(values, -keys)
    cache.keep([0, 2, 3])
    assert cache.length == 6
    assert contents(cache) == [1, 2, 3, 10, 12, 13]


def test_rows_that_are_not_kept_are_overwritten() -> None:
    cache = ContiguousCache(LAYERS, capacity=20)
    run_step(cache, [1, 2, 3])
    cache.keep([])
    assert contents(cache) == []
    keys, _ = run_step(cache, [4])
    assert keys[0, 0, :, 0].tolist() == [4]


def test_it_is_written_in_place_until_it_must_grow() -> None:
    cache = ContiguousCache(LAYERS, capacity=10)
    assert cache.capacity == PAGE
    run_step(cache, list(range(PAGE - 1)))
    cache.keep(range(PAGE - 1))
    keys, _ = run_step(cache, [1])  # now all layers have been written, and are put together
    before = keys.data_ptr()
    keys, _ = run_step(cache, [1])
    assert keys.data_ptr() == before
    keys, _ = run_step(cache, [1, 2])
    assert keys.data_ptr() != before
    assert cache.capacity >= 2 * PAGE and cache.capacity % PAGE == 0
    assert contents(cache) == list(range(PAGE - 1))


def is_together(cache: ContiguousCache) -> bool:
    """Whether the memory of all layers is one piece."""
    first = cache.keys[0].untyped_storage().data_ptr()
    return all(t.untyped_storage().data_ptr() == first for t in (*cache.keys.values(), *cache.values.values()))


def test_layers_that_are_alike_share_their_memory() -> None:
    cache = ContiguousCache(LAYERS, capacity=PAGE)
    run_step(cache, [1, 2, 3])
    cache.keep(range(3))
    assert not is_together(cache), "else the step before proves nothing"
    run_step(cache, [10, 11, 12])
    assert is_together(cache)
    cache.keep([0, 2])
    assert contents(cache) == [1, 2, 3, 10, 12]
    before = cache.addresses().copy()
    run_step(cache, [5] * PAGE)
    assert is_together(cache) and set(cache.addresses()).isdisjoint(before)
    assert contents(cache) == [1, 2, 3, 10, 12]


@torch.inference_mode()
def test_layers_that_differ_keep_their_own_memory() -> None:
    cache = ContiguousCache(2, capacity=PAGE)
    for tokens, kept in ([1, 2], range(2)), ([7, 8, 9], [1, 2]), ([4], [0]):
        cache.reserve(len(tokens))
        for layer, heads in enumerate((1, 2)):
            rows = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None].expand(1, heads, -1, HEAD_DIM)
            cache.update(rows, -rows, layer)
        cache.keep(kept)
    assert not is_together(cache)
    assert cache.keys[0][0, 0, : cache.length, 0].tolist() == cache.keys[1][0, 1, : cache.length, 0].tolist()
    assert cache.values[1][0, 1, : cache.length, 0].tolist() == [-1, -2, -8, -9, -4]


def test_memory_that_is_allocated_at_once() -> None:
    cache = ContiguousCache(LAYERS, capacity=PAGE)
    cache.begin(dict.fromkeys(range(LAYERS), LayerShape(HEADS, HEAD_DIM, HEAD_DIM)), torch.empty(0))
    assert cache.is_written and is_together(cache) and cache.keys[2].shape == (1, HEADS, PAGE, HEAD_DIM)
    assert contents(cache) == []
    other = ContiguousCache(2, capacity=PAGE)
    shapes = {0: LayerShape(1, HEAD_DIM, HEAD_DIM), 3: LayerShape(2, HEAD_DIM, 1)}
    other.begin(shapes, torch.empty(0, dtype=torch.bfloat16))
    assert not is_together(other) and other.values[3].shape == (1, 2, PAGE, 1)
    assert other.is_written and other.shapes == shapes


def test_its_size_in_bytes() -> None:
    cache = ContiguousCache(LAYERS, capacity=PAGE)
    assert cache.num_bytes == 0
    run_step(cache, [1])
    assert cache.num_bytes == 2 * LAYERS * HEADS * PAGE * HEAD_DIM * 4


def test_random_steps_agree_with_a_list() -> None:
    rng = random.Random(0)
    cache, expected = ContiguousCache(LAYERS, capacity=1), list[int]()
    for _ in range(120):
        tokens = [rng.randrange(500) for _ in range(rng.randint(1, 30))]
        keys, _ = run_step(cache, tokens)
        assert keys[0, -1, :, -1].int().tolist() == expected + tokens
        kept = sorted(rng.sample(range(len(tokens)), rng.randint(0, len(tokens))))
        cache.keep(kept)
        expected += [tokens[row] for row in kept]
    assert cache.length == len(expected) > PAGE
