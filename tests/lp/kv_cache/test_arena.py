"""The arena: what a sequence has written is what it reads, whatever other sequences do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lp.kv_cache.arena import Arena, LayerShape, PagedCache
from lp.kv_cache.cache import PAGE, OutOfRoom

SHAPES = {0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 2)}


def make_arena(num_pages: int, shapes: dict[int, LayerShape] | None = None) -> Arena:
    shapes = shapes or SHAPES
    return Arena(shapes, len(shapes), num_pages, torch.float32, torch.device("cpu"))


def rows_of(tokens: list[int], shape: LayerShape, of_values: bool = False) -> Tensor:
    """[1, heads, R, head_dim] keys or values in which each row's numbers are its token."""
    dim = shape.value_dim if of_values else shape.key_dim
    rows = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None].expand(1, shape.heads, -1, dim)
    return -rows if of_values else rows


@torch.inference_mode()
def run_step(cache: PagedCache, tokens: list[int], shapes: dict[int, LayerShape] | None = None) -> list[int]:
    """Writes a step's rows to all layers; returns the tokens that the last layer sees."""
    cache.reserve(len(tokens))
    for layer, shape in (shapes or SHAPES).items():
        keys, values = cache.update(rows_of(tokens, shape), rows_of(tokens, shape, of_values=True), layer)
        assert keys.shape == (1, shape.heads, cache.length + len(tokens), shape.key_dim)
        assert torch.equal(keys[0, -1, :, 0], -values[0, -1, :, -1])
    return keys[0, 0, :, 0].int().tolist()


def append(cache: PagedCache, tokens: list[int]) -> None:
    run_step(cache, tokens)
    cache.keep(range(len(tokens)))


def contents(cache: PagedCache) -> list[int]:
    return run_step(cache, [999])[:-1]


def num_free(arena: Arena) -> int:
    return arena.allocator.num_free


def test_rows_come_after_the_prefix_and_are_kept_in_order() -> None:
    cache = make_arena(4).open()
    append(cache, list(range(250)))
    assert run_step(cache, list(range(1000, 1020)))[250:] == list(range(1000, 1020))
    cache.keep([0, 2, 3, 9, 17])  # across the end of a page
    assert contents(cache) == [*range(250), 1000, 1002, 1003, 1009, 1017]
    assert cache.length == 255 and cache.num_pages == 2
    append(cache, [7, 8, 9])
    assert cache.num_pages == 2 and contents(cache)[-3:] == [7, 8, 9]


def test_scattered_pages_are_read_in_order() -> None:
    arena = make_arena(6)
    one, two = arena.open(), arena.open()
    for number in range(3):
        append(one, [number] * PAGE)
        append(two, [10 + number] * PAGE)
    assert one.pages == [1, 3, 5]
    one.length, two.length = 3 * PAGE - 1, 3 * PAGE - 1  # room for a row
    assert contents(one) == [0] * PAGE + [1] * PAGE + [2] * (PAGE - 1)
    assert contents(two) == [10] * PAGE + [11] * PAGE + [12] * (PAGE - 1)


def test_the_sequence_that_was_used_least_recently_is_evicted() -> None:
    arena = make_arena(4)
    caches = [arena.open() for _ in range(3)]
    for number, cache in enumerate(caches):
        append(cache, [number] * PAGE)
    append(caches[0], [7])
    append(caches[2], [8])
    assert [cache.was_evicted for cache in caches] == [False, True, False]
    assert caches[1].length == caches[1].num_pages == 0
    assert caches[1].take_eviction() and not caches[1].take_eviction()
    assert contents(caches[0]) == [0] * PAGE + [7] and contents(caches[2]) == [2] * PAGE + [8]
    with pytest.raises(OutOfRoom, match=r"needs 1,280 tokens of keys and values, and there is room for 1,024"):
        caches[0].reserve(3 * PAGE)
    assert not caches[2].was_evicted, "nothing is evicted in vain"


def test_a_fork_shares_full_pages_until_one_of_the_two_is_cut() -> None:
    arena = make_arena(8)
    cache = arena.open()
    append(cache, list(range(600)))
    fork = cache.fork()
    assert fork.pages[:2] == cache.pages[:2] and fork.pages[2] != cache.pages[2] and num_free(arena) == 8 - 4
    append(cache, [1, 2])
    append(fork, [3])
    assert contents(cache) == [*range(600), 1, 2] and contents(fork) == [*range(600), 3]
    cache.length = 300
    append(cache, [5] * 10)
    assert contents(fork) == [*range(600), 3] and contents(cache) == [*range(300), *[5] * 10]
    cache.release()
    assert contents(fork) == [*range(600), 3]
    fork.release()
    assert num_free(arena) == 8


def test_a_page_whose_other_users_are_evicted_is_written_as_it_is() -> None:
    arena = make_arena(4)
    cache = arena.open()
    append(cache, [1] * 4 * PAGE)
    fork = cache.fork()
    cache.length = 10
    append(cache, [5] * 3)
    assert fork.was_evicted and contents(cache) == [1] * 10 + [5] * 3


def test_a_page_that_is_not_written_stays_shared() -> None:
    arena = make_arena(4)
    cache = arena.open()
    append(cache, [1] * 3 * PAGE)
    fork = cache.fork()
    cache.length = 10
    append(cache, [5] * 3)
    assert cache.pages[1:] == fork.pages[1:] and num_free(arena) == 0 and not fork.was_evicted
    assert contents(cache) == [1] * 10 + [5] * 3 and contents(fork)[:12] == [1] * 12


def test_layers_that_differ_have_a_store_each() -> None:
    shapes = {0: LayerShape(1, 2, 2), 1: LayerShape(2, 4, 6), 3: LayerShape(1, 2, 2)}
    arena = make_arena(4, shapes)
    assert len(arena.stores) == 3 and arena.page_bytes == 4 * PAGE * (4 + 20 + 4)
    cache = arena.open()
    run_step(cache, [1, 2, 3], shapes)
    cache.keep([0, 2])
    assert run_step(cache, [9], shapes) == [1, 3, 9]
    assert cache.num_bytes == arena.page_bytes


def test_a_cache_that_is_dropped_gives_its_pages_back() -> None:
    arena = make_arena(4)
    cache = arena.open()
    append(cache, [1] * 300)
    fork = cache.fork()
    del cache, fork
    assert num_free(arena) == 4 and not arena._open
