"""The library finds the tokens that are best with the noise of the whole vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lp.platform.library import library
from lp.sampling.drawn import best_of_exact, find_drawn
from lp.sampling.noise import row_keys
from lp.sampling.rows import LAYOUT, Rows, layout_of
from lp.sampling.settings import Sampling
from lp.tree import NOT_A_TOKEN

NUM_ROWS = 40


def rows_of(scores: torch.Tensor, temperature: float = 1.0, drawn: bool | np.ndarray = True) -> Rows:
    """Rows at positions of their own."""
    positions = np.arange(len(scores))
    sampling = Sampling(temperature=temperature, seed=5, top_p=1.0, top_k=0, min_p=0.0)
    choices = layout_of(sampling, 1).repeat(len(scores), axis=0)
    fields = choices.view(LAYOUT)[:, 0]
    fields["key"], fields["is_drawn"] = row_keys(5, positions.tolist()), drawn
    return Rows(scores, choices, np.zeros(len(scores), np.float32), positions)


def check(rows: Rows, num_tokens: int) -> torch.Tensor:
    """Asserts that the library finds what Python finds. Returns it."""
    native = library()
    assert native is not None
    found = torch.from_numpy(find_drawn(native, rows, num_tokens))
    assert torch.equal(found, best_of_exact(rows, num_tokens))
    return found


@pytest.mark.parametrize("num_tokens", [1, 8])
@pytest.mark.parametrize("temperature", [0.05, 0.8, 1.0, 3.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("vocab_size", [3, 130, 5003])
def test_tokens_are_those_of_the_whole_noise(
    vocab_size: int, spread: float, temperature: float, num_tokens: int
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    scores = spread * torch.randn(NUM_ROWS, vocab_size, generator=generator)
    drawn = (np.arange(NUM_ROWS) % 5 > 0) | (spread == 0)  # the order of equal tokens is undefined
    check(rows_of(scores, temperature, drawn), min(num_tokens, vocab_size))


def test_noise_that_float32_says_too_little_of_is_found() -> None:
    """Equal scores of many tokens: the best noise is often of the rarest kind."""
    check(rows_of(torch.zeros(NUM_ROWS, 262_144)), 4)


def test_rows_that_are_no_numbers_or_infinite() -> None:
    scores = torch.zeros(6, 1000)
    scores[0, 700] = math.nan
    scores[1, 20] = math.inf
    scores[2, 30:] = -math.inf
    scores[3] = -math.inf
    scores[4, :] = -1e30
    found = check(rows_of(scores), 2)
    assert found[0].tolist() == [NOT_A_TOKEN] * 2 and found[1, 0] == 20 and (found[2] < 30).all()
