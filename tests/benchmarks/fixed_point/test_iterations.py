"""Every order of updates reaches the same fixed point, and each call settles at least one token."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.fixed_point.iterations import Iterate, Order, Pool, solve
from lp.tree import TokenTree

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]


def any_model(path: list[int]) -> int:
    """A token that depends on the whole path, in no way that an n-gram could guess."""
    return zlib.crc32(repr(path).encode()) % 50


def repeating_model(path: list[int]) -> int:
    """Counts from 1 to 5 again and again."""
    return path[-1] % 5 + 1


def answer(model, tokens: list[int], tree: TokenTree) -> np.ndarray:
    return np.array([model(tokens[:-1] + tree.tokens[tree.path(row)].tolist()) for row in range(len(tree))])


def iterates(model, order: Order, pool: Pool | None, size: int = 12) -> list[Iterate]:
    return solve(lambda tokens, tree: answer(model, tokens, tree), PROMPT, size, order, pool)


def greedy(model, size: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(size):
        tokens.append(model(tokens))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("model", [any_model, repeating_model])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("pool", [None, Pool(3, 2), Pool(4, 4)])
@pytest.mark.parametrize("size", [1, 2, 12])
def test_the_fixed_point_is_greedy_decodings_text(model, order: Order, pool: Pool | None, size: int) -> None:
    found = iterates(model, order, pool, size)
    truth = greedy(model, size)
    assert found[-1].tokens == truth and found[-1].num_settled == size
    settled = [iterate.num_settled for iterate in found]
    assert settled[0] == 0 and all(after > before for before, after in pairwise(settled))
    for iterate in found:
        assert len(iterate.tokens) == size
        assert all(iterate.right(truth)[: iterate.num_settled])


def test_gauss_seidel_is_autoregressive_decoding() -> None:
    found = iterates(any_model, Order.gauss_seidel, None)
    assert len(found) == 13 and [iterate.num_rows for iterate in found[1:]] == [1] * 12
    assert found[5].tokens == [*greedy(any_model, 5), *[None] * 7]


def test_jacobi_updates_all_open_tokens_in_each_call() -> None:
    found = iterates(any_model, Order.jacobi, None)
    assert None not in found[0].tokens and [iterate.num_rows for iterate in found[1:4]] == [12, 11, 10]
    after = found[1].tokens
    guess = [token for token in found[0].tokens if token is not None]
    assert after == [any_model([*PROMPT, *guess[:place]]) for place in range(12)]


@pytest.mark.parametrize("order", Order)
def test_a_pool_saves_calls_where_text_repeats(order: Order) -> None:
    assert len(iterates(repeating_model, order, Pool())) < len(iterates(repeating_model, order, None))


def test_a_pool_holds_ngrams_of_the_iterates() -> None:
    """The model's text does not occur in the prompt, and yet Jacobi iteration with a pool finds its n-grams."""
    skips = lambda path: (path[-1] + 7) % 40 + 10  # noqa: E731
    alone, pooled = iterates(skips, Order.jacobi, None, 30), iterates(skips, Order.jacobi, Pool(3, 8), 30)
    assert len(pooled) < len(alone) <= 31
