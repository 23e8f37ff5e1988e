"""The best tokens are those of a full sort."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from lp.platform.library import python_alone
from lp.sampling.top_k import STRIDED_BLOCK, best_tokens, top_tokens

# In lp/platform/csrc/best.h.
BLOCK = 128


@pytest.fixture(params=["library", "Python"])
def maker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has the best tokens found by the library, or by torch alone."""
    with python_alone() if request.param == "Python" else nullcontext():
        yield


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("vocab_size", [5, BLOCK, 3 * BLOCK, 20 * BLOCK + 7, 40 * BLOCK - 1])
@pytest.mark.parametrize("num_tokens", [1, 2, 5])
@pytest.mark.parametrize("spread", [3, 10_000])
def test_against_a_full_sort(vocab_size: int, num_tokens: int, spread: int) -> None:
    scores = torch.randint(spread, (17, vocab_size), generator=torch.Generator().manual_seed(vocab_size)).float()
    scores[0, 1:] = float("-inf")
    scores[1, :-1] = float("-inf")
    found = best_tokens(scores, num_tokens)
    assert found.are_numbers.all()
    assert torch.equal(found.tokens[:, 0], scores.argmax(dim=1))
    assert torch.equal(found.values, scores.topk(num_tokens, dim=1).values)
    assert torch.equal(found.values, scores.gather(1, found.tokens))
    assert all(len(set(row)) == num_tokens for row in found.tokens.tolist())


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("vocab_size", [9, 20 * BLOCK + 7])
def test_rows_with_a_nan_are_marked(vocab_size: int) -> None:
    scores = torch.zeros(4, vocab_size)
    scores[1, 0] = scores[2, -1] = float("nan")
    scores[3, 3] = float("inf")
    assert best_tokens(scores, 3).are_numbers.tolist() == [True, False, False, True]


@pytest.mark.parametrize("vocab_size", [65, 64 * STRIDED_BLOCK, 100 * STRIDED_BLOCK + 9])
@pytest.mark.parametrize("spread", [3, 100_000])
def test_top_tokens_are_the_best(vocab_size: int, spread: int) -> None:
    """A small spread gives many equal scores, a large one hardly any."""
    scores = torch.randint(spread, (17, vocab_size), generator=torch.Generator().manual_seed(vocab_size)).float()
    found = top_tokens(scores, 64)
    assert (found.tokens.diff(dim=1) > 0).all()
    assert torch.equal(found.values, scores.gather(1, found.tokens))
    assert torch.equal(found.values.sort(dim=1, descending=True).values, scores.topk(64, dim=1).values)
    left_out = scores.scatter(1, found.tokens, float("-inf"))
    assert (left_out.amax(dim=1, keepdim=True) <= found.beyond).all()
    assert torch.equal(found.beyond[:, 0], found.values.amin(dim=1))


def test_a_nan_is_among_the_top_tokens() -> None:
    scores = torch.randn(2, 5000)
    scores[1, 4321] = float("nan")
    assert top_tokens(scores, 64).beyond.isnan()[:, 0].tolist() == [False, True]
