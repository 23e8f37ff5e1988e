"""The choosers of a GPU, interpreted, choose the tokens of those that look at the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lp import Sampling
from lp.sampling.choosers import CHUNK, KINDS, TRUNCATED, WHOLE, FullVocabulary, FusedChooser
from lp.sampling.rows import Rows
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree
from tests.lp.model.gpu.interpreter import interpret

VOCABULARY, NUM_TOKENS, SEED = CHUNK + 900, 3, 5


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Makes logits of a spread distribution; one row holds a NaN, and one has equal scores."""
    interpret(monkeypatch)
    scores = 3 * torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    scores[4, CHUNK + 7] = float("nan")
    scores[5, :] = scores[5, :].round()
    return scores


def rows_of(sampling: Sampling, scores: torch.Tensor, num_tokens: int = NUM_TOKENS) -> Rows:
    """Rows at several positions, of which the second is greedy."""
    depths = np.array([0, 1, 1, 993, 2, 3])[: len(scores)]
    greedy = np.array([False, True, False, False, False, False])[: len(scores)]
    tree = TokenTree(np.zeros_like(depths), depths - 1, depths, greedy)
    complete = Sampling.greedy().changed({key: value for key, value in vars(sampling).items() if value is not None})
    asked = Sampler(complete, 1, [], VOCABULARY, "cpu").ask(tree, [0] * 7, num_tokens)
    return Rows(scores, asked.choices, asked.dropped, asked.positions)


def test_greedy_tokens_are_the_best(scores: torch.Tensor) -> None:
    rows = rows_of(Sampling.greedy(), scores)
    expected = FullVocabulary(NUM_TOKENS, is_greedy=True)(rows)
    found = FusedChooser(WHOLE, NUM_TOKENS)(rows)[:, : 1 + NUM_TOKENS]
    assert torch.equal(found[:5], expected[:5])
    assert found[5, 1] == expected[5, 1]  # top-k promises no order among equals behind the first


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_drawn_tokens_are_those_of_the_whole_vocabulary(temperature: float, scores: torch.Tensor) -> None:
    rows = rows_of(Sampling(temperature=temperature, seed=SEED), scores)
    expected = FullVocabulary(NUM_TOKENS, is_greedy=False)(rows)
    assert torch.equal(FusedChooser(WHOLE, NUM_TOKENS)(rows)[:, : 1 + NUM_TOKENS], expected)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(20, 1.0, 0.0), (0, 0.6, 0.0), (40, 0.9, 0.02), (0, 1.0, 0.2), (1, 0.5, 0.5)]
)
def test_settled_rows_are_those_of_the_whole_vocabulary(
    top_k: int, top_p: float, min_p: float, scores: torch.Tensor
) -> None:
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, seed=SEED)
    rows = rows_of(sampling, scores)
    expected = FullVocabulary(NUM_TOKENS, is_greedy=False, is_truncated=True)(rows)[:, 1]
    found = FusedChooser(TRUNCATED, NUM_TOKENS)(rows)
    is_decided = found[:, 0].bool()
    assert torch.equal(found[:, 1][is_decided], expected[is_decided])
    assert is_decided[:5].all()


def test_rows_that_a_short_list_cannot_settle_are_left(scores: torch.Tensor) -> None:
    flat = rows_of(Sampling(1.0, 0, 0.95, 0.0, seed=SEED), scores * 0.01, 1)
    is_decided = FusedChooser(TRUNCATED, 1)(flat)[:, 0]
    assert is_decided.tolist() == [0, 0, 0, 0, 1, 0]  # a NaN is decided


@pytest.mark.parametrize("kind", KINDS)
def test_one_launch_serves_rows_of_all_settings(kind: str, scores: torch.Tensor) -> None:
    """As a captured graph does: settings lie beside each row, and rows that nobody wants are left alone."""
    settings = [Sampling(0.7, 0, 1.0, 0.0, seed=3), Sampling.greedy(), Sampling(1.2, 0, 1.0, 0.0, seed=4)]
    if kind == TRUNCATED:
        settings = [
            Sampling(0.7, 20, 0.9, 0.0, seed=3),
            Sampling(0.9, 0, 0.5, 0.1, seed=4),
            Sampling(1.2, 9, 1, 0, seed=5),
        ]
    counts = (1, 3, 2)
    parts = [rows_of(one, scores[row : row + 1], counts[row]) for row, one in enumerate(settings)]
    choices = [part.uploaded() for part in parts]
    found = KINDS[kind](scores[:4], torch.cat([*choices, torch.zeros(1, 4, dtype=torch.int64)]))
    for row, (count, part) in enumerate(zip(counts, parts, strict=True)):
        expected = FusedChooser(kind, count)(part)
        assert found[row, 0] == expected[0, 0] == 1
        assert torch.equal(found[row, 1 : 1 + count], expected[0, 1 : 1 + count])
