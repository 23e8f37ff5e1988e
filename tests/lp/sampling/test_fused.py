"""The choosers of a GPU, interpreted, choose the tokens of those that look at the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

from lp import Sampling
from lp.sampling.full_vocabulary import FullVocabulary, Rows
from lp.sampling.fused import CHUNK, FusedShortlist, FusedVocabulary
from lp.sampling.noise import NoiseTable
from lp.sampling.processors import warpers
from tests.lp.model.gpu.fused.interpreter import interpret

VOCABULARY, NUM_TOKENS, SEED = CHUNK + 900, 3, 5


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Rows of a spread distribution; some are greedy, one holds a NaN, and one has equal scores."""
    interpret(monkeypatch)
    scores = 3 * torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    scores[4, CHUNK + 7] = float("nan")
    scores[5, :] = scores[5, :].round()
    greedy = np.array([False, True, False, False, False, False])
    return Rows(scores, np.array([7, 8, 8, 1000, 9, 10]), greedy)


def test_greedy_tokens_are_the_best(rows: Rows) -> None:
    expected = FullVocabulary(LogitsProcessorList(), None, NUM_TOKENS)(rows).tokens
    found = FusedVocabulary(None, None, NUM_TOKENS)(rows).tokens
    assert torch.equal(found[:5], expected[:5])
    assert found[5, 0] == expected[5, 0]  # top-k promises no order among equals behind the first


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_drawn_tokens_are_those_of_the_whole_vocabulary(temperature: float, rows: Rows) -> None:
    noise = NoiseTable(SEED, VOCABULARY)
    expected = FullVocabulary(warpers(Sampling(temperature=temperature)), noise, NUM_TOKENS)(rows).tokens
    assert torch.equal(FusedVocabulary(SEED, temperature, NUM_TOKENS)(rows).tokens, expected)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(20, 1.0, 0.0), (0, 0.6, 0.0), (40, 0.9, 0.02), (0, 1.0, 0.2), (1, 0.5, 0.5)]
)
def test_settled_rows_are_those_of_the_whole_vocabulary(top_k: int, top_p: float, min_p: float, rows: Rows) -> None:
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = FullVocabulary(warpers(sampling), NoiseTable(SEED, VOCABULARY), NUM_TOKENS)(rows).tokens[:, 0]
    tokens, is_settled = FusedShortlist(128, SEED, 0.8, top_k, top_p, min_p, NUM_TOKENS)(rows)
    assert torch.equal(tokens[:, 0][is_settled], expected[is_settled])
    assert is_settled[:5].all()


def test_rows_that_a_short_list_cannot_settle_are_left(rows: Rows) -> None:
    flat = Rows(rows.scores * 0.01, rows.positions, rows.greedy)
    is_settled = FusedShortlist(128, SEED, 1.0, 0, 0.95, 0.0, 1)(flat).is_settled
    assert is_settled.tolist() == [False, False, False, False, True, False]  # a NaN is settled
