"""The choosers of a GPU, interpreted, choose the tokens of those that look at the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

from lp import Sampling
from lp.sampling.full_vocabulary import FullVocabulary, Rows
from lp.sampling.fused import CHUNK, KINDS, TRUNCATED, WHOLE, FusedChooser
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
    found = FusedChooser(WHOLE, Sampling.greedy(), NUM_TOKENS)(rows).tokens
    assert torch.equal(found[:5], expected[:5])
    assert found[5, 0] == expected[5, 0]  # top-k promises no order among equals behind the first


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_drawn_tokens_are_those_of_the_whole_vocabulary(temperature: float, rows: Rows) -> None:
    noise = NoiseTable(SEED, VOCABULARY)
    expected = FullVocabulary(warpers(Sampling(temperature=temperature)), noise, NUM_TOKENS)(rows).tokens
    sampling = Sampling(temperature=temperature, seed=SEED)
    assert torch.equal(FusedChooser(WHOLE, sampling, NUM_TOKENS)(rows).tokens, expected)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(20, 1.0, 0.0), (0, 0.6, 0.0), (40, 0.9, 0.02), (0, 1.0, 0.2), (1, 0.5, 0.5)]
)
def test_settled_rows_are_those_of_the_whole_vocabulary(top_k: int, top_p: float, min_p: float, rows: Rows) -> None:
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, seed=SEED)
    expected = FullVocabulary(warpers(sampling), NoiseTable(SEED, VOCABULARY), NUM_TOKENS)(rows).tokens[:, 0]
    tokens, is_settled = FusedChooser(TRUNCATED, sampling, NUM_TOKENS)(rows)
    assert torch.equal(tokens[:, 0][is_settled], expected[is_settled])
    assert is_settled[:5].all()


def test_rows_that_a_short_list_cannot_settle_are_left(rows: Rows) -> None:
    flat = Rows(rows.scores * 0.01, rows.positions, rows.greedy)
    is_settled = FusedChooser(TRUNCATED, Sampling(1.0, 0, 0.95, 0.0, seed=SEED), 1)(flat).is_settled
    assert is_settled.tolist() == [False, False, False, False, True, False]  # a NaN is settled


@pytest.mark.parametrize("kind", KINDS)
def test_one_launch_serves_rows_of_all_settings(kind: str, rows: Rows) -> None:
    """As a captured graph does: settings lie beside each row, and rows that nobody wants are left alone."""
    settings = [Sampling(0.7, 0, 1.0, 0.0, seed=3), Sampling.greedy(), Sampling(1.2, 0, 1.0, 0.0, seed=4)]
    if kind == TRUNCATED:
        settings = [
            Sampling(0.7, 20, 0.9, 0.0, seed=3),
            Sampling(0.9, 0, 0.5, 0.1, seed=4),
            Sampling(1.2, 9, 1, 0, seed=5),
        ]
    choosers = [FusedChooser(kind, one, count) for one, count in zip(settings, (1, 3, 2), strict=True)]
    parts = [rows.take(np.array([row])) for row in range(3)]
    choices = [one.choices(part.positions, part.greedy) for one, part in zip(choosers, parts, strict=True)]
    given = torch.from_numpy(np.concatenate([*choices, np.zeros((1, 4), np.int64)]))
    found = KINDS[kind](rows.scores[:4], given)
    for row, (one, part) in enumerate(zip(choosers, parts, strict=True)):
        expected = one(part)
        assert found[row, 0] == expected.is_settled[0] == 1
        assert torch.equal(found[row, 1 : 1 + one.num_tokens], expected.tokens[0])
