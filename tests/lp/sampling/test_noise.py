"""Noise is a pure function of (seed, position, token id) and looks like independent standard Gumbel draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lp.sampling.noise import gumbel, gumbel_at, noise_of_rows, row_keys

VOCAB_SIZE = 20_000


def correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([first, second]))[0, 1].item()


def test_noise_is_a_pure_function() -> None:
    assert torch.equal(gumbel(3, 17, 1000), gumbel(3, 17, 1000))
    assert torch.equal(gumbel(3, 17, 1000)[:10], gumbel(3, 17, 10)), "a token's noise must not depend on the vocabulary"
    assert not torch.equal(gumbel(3, 17, 1000), gumbel(3, 18, 1000))
    assert not torch.equal(gumbel(3, 17, 1000), gumbel(4, 17, 1000))


def test_values_never_change() -> None:
    """A seed must give the same text in every release."""
    expected = torch.tensor([0.8114344, -0.7154720, 0.2123751, -0.0356265])
    torch.testing.assert_close(gumbel(seed=42, position=7, vocab_size=4), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (0, 1), (1, 0), (2**63 - 1, 100_000), (12345, 2**20)])
def test_noise_over_the_vocabulary_is_gumbel(seed: int, position: int) -> None:
    noise = gumbel(seed, position, VOCAB_SIZE)
    assert noise.dtype == torch.float32 and noise.isfinite().all()
    assert stats.kstest(noise.numpy(), stats.gumbel_r.cdf).pvalue > 1e-4


def test_one_token_over_positions_and_over_seeds_is_gumbel() -> None:
    over_positions = [gumbel(9, position, 3)[2].item() for position in range(3000)]
    over_seeds = [gumbel(seed, 9, 3)[2].item() for seed in range(3000)]
    for noise in (over_positions, over_seeds):
        assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-4
        assert abs(stats.pearsonr(noise[1:], noise[:-1]).statistic) < 5 / math.sqrt(3000)


def test_positions_seeds_and_tokens_are_independent() -> None:
    bound = 5 / math.sqrt(VOCAB_SIZE)
    here = gumbel(5, 10, VOCAB_SIZE)
    for seed, position in [(5, 11), (6, 10), (6, 9), (10, 5)]:
        assert abs(correlation(here, gumbel(seed, position, VOCAB_SIZE))) < bound
    assert abs(correlation(here[1:], here[:-1])) < bound


def test_tokens_of_several_positions_get_what_the_whole_vocabulary_gets() -> None:
    tokens = torch.tensor([[5, 0, 999], [7, 7, 31], [1, 2, 3]])
    positions = [4, 0, 100_000]
    expected = [gumbel(3, position, 1000)[row] for position, row in zip(positions, tokens, strict=True)]
    assert torch.equal(gumbel_at(3, positions, tokens), torch.stack(expected))


@pytest.mark.parametrize("vocab_size", [8, 40_001])
def test_rows_of_many_seeds_get_what_each_gets_alone(vocab_size: int) -> None:
    keys = np.concatenate([row_keys(1, [4]), row_keys(2, [4]), row_keys(2, [9]), row_keys(1, [5])])
    drawn = torch.tensor([True, True, True, False])[:, None]
    found = noise_of_rows(torch.from_numpy(keys)[:, None], drawn, vocab_size)
    expected = [gumbel(1, 4, vocab_size), gumbel(2, 4, vocab_size), gumbel(2, 9, vocab_size), torch.zeros(vocab_size)]
    assert torch.equal(found, torch.stack(expected))
