"""The library finds the tokens of rows with top-k, top-p and min-p, and says for which rows they are certain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lp.platform.library import library, python_alone
from lp.sampling.choosers import NUM_BEST, FullVocabulary, Shortlist
from lp.sampling.noise import row_keys
from lp.sampling.rows import LAYOUT, Rows, layout_of
from lp.sampling.settings import Sampling
from lp.tree import NOT_A_TOKEN

NUM_ROWS, NUM_TOKENS = 16, 4


def rows_of(scores: torch.Tensor, **settings: float | int) -> Rows:
    """Rows at positions of their own; every fifth is not drawn."""
    sampling = Sampling(**({"temperature": 0.8, "seed": 5, "top_p": 1.0, "top_k": 0, "min_p": 0.0} | settings))
    assert sampling.top_p is not None
    positions = np.arange(len(scores))
    choices = layout_of(sampling, NUM_TOKENS).repeat(len(scores), axis=0)
    fields = choices.view(LAYOUT)[:, 0]
    fields["key"], fields["is_drawn"] = row_keys(5, positions.tolist()), positions % 5 > 0
    return Rows(scores, choices, np.full(len(scores), 1 - sampling.top_p, np.float32), positions)


def shortlist_of(rows: Rows) -> Shortlist:
    return Shortlist(NUM_BEST, NUM_TOKENS, is_of_all=not rows.any("top_k") and rows.any("top_p"))


def check(rows: Rows) -> np.ndarray:
    """Asserts that tokens that the library is sure of are those of the whole vocabulary, and that the shortlist's
    others are the same without it. Returns which are sure.
    """
    assert library() is not None
    chooser = shortlist_of(rows)
    tokens, are_sure = chooser.found(rows)
    packed = chooser(rows).numpy()
    with python_alone():
        alone = chooser(rows).numpy()
        whole = FullVocabulary(NUM_TOKENS, is_greedy=False, is_truncated=True)(rows).numpy()
    assert np.array_equal(tokens[are_sure, 0], whole[are_sure, 1])
    assert np.array_equal(tokens[are_sure], alone[are_sure, 1:])
    assert np.array_equal(packed[~are_sure], alone[~are_sure])
    assert packed[are_sure, 0].all()
    everything = chooser.find(rows)
    assert (everything is None) == (not are_sure.all())
    return are_sure


@pytest.mark.parametrize("settings", [
    {"top_p": 0.9}, {"top_p": 0.5, "temperature": 0.3}, {"top_p": 0.95, "temperature": 1.5}, {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5, "top_p": 0.9}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"min_p": 0.1},
    {"top_p": 0.95, "min_p": 0.05},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("vocab_size", [300, 5003, 49_152])
def test_tokens_are_those_of_the_whole_vocabulary(vocab_size: int, settings: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    sure = [
        check(rows_of(spread * torch.randn(NUM_ROWS, vocab_size, generator=generator), **settings)).mean()
        for spread in (2.0, 4.0, 16.0)
    ]
    assert sure[-1] > 0.9, "few tokens have nearly all of the probability"


@pytest.mark.parametrize(
    "settings", [{"top_p": 0.9}, {"top_k": 8}, {"top_k": 8, "top_p": 0.7}, {"min_p": 0.2}], ids=str
)
def test_equal_scores(settings: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(1)
    check(rows_of((3 * torch.randn(NUM_ROWS, 1000, generator=generator)).round(), **settings))
    assert not check(rows_of(torch.zeros(3, 1000), **settings)).any()


def test_a_sum_of_shares_that_is_top_p_itself_is_left_to_others() -> None:
    scores = torch.full((2, 1000), -50.0)
    scores[:, :4] = math.log(0.25) * 0.8
    assert not check(rows_of(scores, top_p=0.75)).any()
    scores[:, 3] = -20.0
    assert check(rows_of(scores, top_p=0.75)).tolist() == [False, True], (
        "three are equal, and the first row has no noise"
    )


def test_rows_that_are_no_numbers_or_infinite() -> None:
    scores = 4 * torch.randn(4, 1000, generator=torch.Generator().manual_seed(2))
    scores[0, 700], scores[1, 10], scores[2, 20:] = math.nan, math.inf, -math.inf
    rows = rows_of(scores, top_p=0.9)
    assert check(rows).tolist() == [False, False, True, True]
    assert (shortlist_of(rows)(rows)[0, 1:] == NOT_A_TOKEN).all()
