"""Tokens that one cache has exported are, to the bit, those that another one holds once it has appended them."""

from __future__ import annotations

import pytest
import torch

from lp.kv_cache.arena import LayerShape
from lp.kv_cache.cache import PAGE, KVCache, OutOfRoom
from lp.kv_cache.contiguous import ContiguousCache, ContiguousMemory
from tests.lp.kv_cache.test_arena import append, contents, make_arena, run_step

ALIKE = {0: LayerShape(2, 4, 4), 1: LayerShape(2, 4, 4)}
DIFFERENT = {0: LayerShape(2, 4, 6), 1: LayerShape(1, 8, 8), 2: LayerShape(3, 4, 4)}
NUM_TOKENS = 2 * PAGE + 40


@torch.inference_mode()
def fill(cache: KVCache, num_tokens: int, shapes: dict[int, LayerShape], seed: int = 0) -> None:
    """Appends tokens of random keys and values."""
    generator = torch.Generator().manual_seed(seed)
    cache.reserve(num_tokens)
    for layer, shape in shapes.items():
        keys = torch.randn(1, shape.heads, num_tokens, shape.key_dim, generator=generator)
        values = torch.randn(1, shape.heads, num_tokens, shape.value_dim, generator=generator)
        cache.update(keys.bfloat16(), values.bfloat16(), layer)
    cache.keep(range(num_tokens))


@pytest.mark.parametrize("shapes", [ALIKE, DIFFERENT])
def test_a_cache_of_its_own_memory_holds_what_another_one_has_exported(shapes: dict[int, LayerShape]) -> None:
    memory = ContiguousMemory(len(shapes), 12)
    source, target = memory.open(NUM_TOKENS), memory.open(1)
    fill(source, NUM_TOKENS, shapes)
    for begin, end in ((0, 100), (100, 101), (101, NUM_TOKENS)):
        target.append(source.export(begin, end), shapes)
        assert target.length == end
    assert target.is_written
    assert torch.equal(target.export(0, NUM_TOKENS), source.export(0, NUM_TOKENS))
    fill(source, 3, shapes, seed=1)  # both go on, each by itself
    fill(target, 3, shapes, seed=1)
    assert torch.equal(target.export(50, NUM_TOKENS + 3), source.export(50, NUM_TOKENS + 3))
    fill(target, 5, shapes, seed=2)
    assert source.length == NUM_TOKENS + 3
    with pytest.raises(OutOfRoom):
        target.append(torch.cat([source.export(0, source.length)] * 6), shapes)


def test_an_arena_holds_what_another_one_has_exported_wherever_its_pages_are() -> None:
    source, target = make_arena(9), make_arena(9)
    one, beside, other = source.open(), target.open(), target.open()
    append(one, list(range(600)))
    append(beside, [7] * 300)
    run_step(one, list(range(1000, 1010)))
    one.keep([1, 4, 9])  # still to be moved
    shapes = {0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 2)}
    other.append(one.export(0, 200), shapes)
    append(beside, [8] * 300)
    other.append(one.export(200, 603), shapes)
    assert contents(other) == [*range(600), 1001, 1004, 1009] == contents(one)
    assert contents(beside) == [7] * 300 + [8] * 300


def test_a_page_that_is_shared_is_not_written_by_an_append() -> None:
    arena = make_arena(9)
    first = arena.open()
    append(first, list(range(PAGE + 20)))
    second = first.fork(PAGE + 10)
    third = first.fork(PAGE)
    second.append(first.export(5, 15), {0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 2)})
    assert contents(second) == [*range(PAGE + 10), *range(5, 15)]
    assert contents(first) == list(range(PAGE + 20)) and contents(third) == list(range(PAGE))


@torch.inference_mode()
def test_what_a_step_has_left_behind_is_no_part_of_an_export() -> None:
    cache = ContiguousCache(2, 20)
    fill(cache, 10, ALIKE)
    before = cache.export(0, 10)
    cache.reserve(4)
    cache.update(torch.ones(1, 2, 4, 4).bfloat16(), torch.ones(1, 2, 4, 4).bfloat16(), 0)
    assert torch.equal(cache.export(0, 10), before) and cache.length == 10
