"""The n-gram pool: lookup gives the newest first, and the size is bounded in all and for each token."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from lp.methods.ngram_pool import Continuation, NGramPool


def tokens_of(pool: NGramPool, token: int, most: int = 100) -> list[tuple[int, ...]]:
    """The continuations of a token, without their sources."""
    return [continuation.tokens for continuation in pool.lookup(token, most)]


def test_lookup_gives_the_newest_first() -> None:
    pool = NGramPool(3, capacity=10, per_token=5)
    for last in (1, 2, 3):
        pool.add((7, 0, last), "window")
    assert tokens_of(pool, 7) == [(0, 3), (0, 2), (0, 1)]
    assert tokens_of(pool, 7, most=2) == [(0, 3), (0, 2)]
    assert tokens_of(pool, 8) == []


def test_an_ngram_added_again_becomes_the_newest_with_its_latest_source() -> None:
    pool = NGramPool(2, capacity=10, per_token=5)
    pool.add((7, 1), "window")
    pool.add((7, 2), "window")
    pool.add((7, 1), "prompt")
    assert pool.lookup(7, 5) == [Continuation((1,), "prompt"), Continuation((2,), "window")]
    assert len(pool) == 2


def test_a_token_has_a_bounded_number_of_continuations() -> None:
    pool = NGramPool(2, capacity=100, per_token=3)
    for last in range(10):
        pool.add((7, last), "window")
    assert tokens_of(pool, 7) == [(9,), (8,), (7,)]
    assert len(pool) == 3


def test_the_first_token_not_added_to_for_longest_is_forgotten_first() -> None:
    pool = NGramPool(2, capacity=3, per_token=3)
    for first in (1, 2, 3):
        pool.add((first, 0), "window")
    pool.add((1, 5), "window")  # over capacity: token 2 is now the one not added to for longest
    assert tokens_of(pool, 2) == []
    assert tokens_of(pool, 1) == [(5,), (0,)]
    assert len(pool) == 3


def test_a_text_gives_all_its_ngrams_in_order() -> None:
    pool = NGramPool(3, capacity=10, per_token=5)
    pool.add_text([1, 2, 3, 1, 2], "prompt")
    assert sorted(pool.items()) == [(1, (2, 3)), (2, (3, 1)), (3, (1, 2))]
    pool.add_text([1, 2], "prompt")  # shorter than an n-gram
    assert len(pool) == 3


@pytest.mark.parametrize("seed", range(10))
def test_it_agrees_with_a_simple_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, per_token = int(rng.integers(1, 12)), int(rng.integers(1, 5))
    pool = NGramPool(2, capacity, per_token)
    plain: OrderedDict[int, list[int]] = OrderedDict()
    for _ in range(300):
        first, second = rng.integers(6, size=2).tolist()
        pool.add((first, second), "window")
        known = [token for token in plain.pop(first, []) if token != second] + [second]
        plain[first] = known[-per_token:]
        while sum(map(len, plain.values())) > capacity:
            oldest = next(iter(plain))
            plain[oldest].pop(0)
            if not plain[oldest]:
                del plain[oldest]
        assert len(pool) == sum(map(len, plain.values())) <= capacity
        for token in range(6):
            assert tokens_of(pool, token) == [(second,) for second in reversed(plain.get(token, []))]
    expected = [(first, (second,)) for first, known in plain.items() for second in known]
    assert list(pool.items()) == expected
