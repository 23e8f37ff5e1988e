"""Shortlists and the full vocabulary choose the tokens that transformers' warpers and the noise of all tokens give."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import GenerationConfig

from benchmarks.shared.processors import warpers
from lp import Sampling
from lp.sampling.choosers import Shortlist
from lp.sampling.noise import gumbel
from lp.sampling.rows import Chooser
from lp.sampling.sampler import Sampler, choosers_for
from lp.tree import NOT_A_TOKEN, TokenTree, chain
from tests.slow import exhaustive_except

VOCAB_SIZE = 16_000
NUM_ROWS = 60
TOKENS = [3, 1, 4]
TRUNCATIONS = {
    "none": {},
    "top_k": {"top_k": 50},
    "top_k too large for a shortlist": {"top_k": 300},
    "top_p": {"top_p": 0.95},
    "small top_p": {"top_p": 0.3},
    "top_k and top_p": {"top_k": 50, "top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "all": {"top_k": 40, "top_p": 0.95, "min_p": 0.03},
}
LOGITS = ["sharp", "flat", "coarse", "equal"]


def make_logits(kind: str) -> Tensor:
    """sharp: like a trained model's. flat: like a random model's. coarse: bfloat16, so that many are equal."""
    generator = torch.Generator().manual_seed(7)
    ranks = torch.rand(NUM_ROWS, VOCAB_SIZE, generator=generator).argsort(dim=1) + 1
    sharp = 20 - 1.4 * ranks.log() + 0.3 * torch.randn(NUM_ROWS, VOCAB_SIZE, generator=generator)
    match kind:
        case "sharp":
            return sharp
        case "coarse":
            return sharp.bfloat16().float()
        case "flat":
            return torch.randn(NUM_ROWS, VOCAB_SIZE, generator=generator)
        case _:
            return torch.ones(NUM_ROWS, VOCAB_SIZE)


def make_sampling(temperature: float, **settings: float) -> Sampling:
    return dataclasses.replace(Sampling(temperature=temperature, seed=11), **settings).with_defaults(GenerationConfig())


def make_tree() -> TokenTree:
    """A chain in which every third row is greedy."""
    return dataclasses.replace(chain([5] * NUM_ROWS), greedy=np.arange(NUM_ROWS) % 3 == 0)


def noisy_scores(sampling: Sampling, logits: Tensor, tree: TokenTree) -> Tensor:
    """[R, V] scores by transformers' warpers, plus the noise of the whole vocabulary for rows that are not greedy."""
    scores = warpers(sampling)(cast(LongTensor, torch.empty(len(tree), 0)), cast(FloatTensor, logits)).clone()
    assert tree.greedy is not None and sampling.seed is not None
    for row, (depth, is_greedy) in enumerate(zip(tree.depths.tolist(), tree.greedy, strict=True)):
        if not is_greedy:
            scores[row] += gumbel(sampling.seed, len(TOKENS) + depth, VOCAB_SIZE)
    return scores


@pytest.mark.parametrize(
    ("temperature", "kind"),
    exhaustive_except(
        [(temperature, kind) for temperature in (0.8, 1.0) for kind in LOGITS],
        (0.8, "coarse"), (0.8, "equal"), (1.0, "sharp"),
        quick=[(0.8, "sharp"), (0.8, "flat")],
    ),
)  # fmt: skip
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_targets_are_those_of_transformers_warpers(temperature: float, name: str, kind: str) -> None:
    sampling, logits, tree = make_sampling(temperature, **TRUNCATIONS[name]), make_logits(kind), make_tree()
    expected = noisy_scores(sampling, logits, tree)
    plain = Sampler(sampling, 2, [], VOCAB_SIZE, "cpu").answers(logits, tree, TOKENS)
    assert plain.candidates is None
    assert plain.targets.tolist() == expected.argmax(dim=1).tolist()
    found = Sampler(sampling, 2, [], VOCAB_SIZE, "cpu").answers(logits, tree, TOKENS, num_candidates=8)
    assert found.candidates is not None
    assert np.array_equal(found.targets, plain.targets) and np.array_equal(found.candidates[:, 0], plain.targets)
    assert all(len(set(row)) == 8 for row in found.candidates.tolist())


@pytest.mark.parametrize("name", ["none", "top_k"])
def test_candidates_are_the_best_with_noise(name: str) -> None:
    sampling, logits, tree = make_sampling(0.8, **TRUNCATIONS[name]), make_logits("sharp"), make_tree()
    found = Sampler(sampling, 2, [], VOCAB_SIZE, "cpu").answers(logits, tree, TOKENS, num_candidates=8)
    assert found.candidates is not None
    assert np.array_equal(found.candidates, noisy_scores(sampling, logits, tree).topk(8, dim=1).indices)


def test_greedy_candidates_are_the_best_logits() -> None:
    logits = make_logits("sharp")
    sampler = Sampler(make_sampling(0.0, top_k=5, top_p=0.5), 2, [], VOCAB_SIZE, "cpu")
    candidates = sampler.answers(logits, make_tree(), TOKENS, num_candidates=8).candidates
    assert candidates is not None and np.array_equal(candidates, logits.topk(8, dim=1).indices)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_vocabulary_smaller_than_the_candidates(temperature: float) -> None:
    tree = chain([1, 2])
    found = Sampler(make_sampling(temperature), 2, [], 5, "cpu").answers(torch.randn(2, 5), tree, TOKENS, 8)
    assert found.candidates is not None and found.candidates.shape == (2, 8)
    assert all(set(row) == set(range(5)) for row in found.candidates.tolist())


@pytest.mark.parametrize("name", ["top_k", "top_p", "all"])
def test_a_trained_models_rows_are_settled_by_the_shortest_list(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def counted(*arguments: Any) -> tuple[Chooser, ...]:
        shortest, *_, full = choosers_for(*arguments)
        assert isinstance(shortest, Shortlist)
        return shortest, lambda rows: left.append(len(rows.scores)) or full(rows)

    monkeypatch.setattr("lp.sampling.sampler.choosers_for", counted)
    sampler = Sampler(make_sampling(0.8, **TRUNCATIONS[name]), 2, [], VOCAB_SIZE, "cpu")
    for kind in ("sharp", "coarse"):
        sampler.answers(make_logits(kind), make_tree(), TOKENS)
    assert sum(left) <= 0.1 * 2 * NUM_ROWS


@pytest.mark.parametrize("name", TRUNCATIONS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_that_hold_a_nan_have_no_target(name: str, temperature: float) -> None:
    logits = make_logits("sharp")
    logits[3, 17] = logits[5, VOCAB_SIZE - 1] = logits[8, :] = float("nan")
    sampler = Sampler(make_sampling(temperature, **TRUNCATIONS[name]), 2, [], VOCAB_SIZE, "cpu")
    targets = sampler.answers(logits, make_tree(), TOKENS, num_candidates=3).targets
    assert np.flatnonzero(targets == NOT_A_TOKEN).tolist() == [3, 5, 8]


def test_log_probabilities_are_of_the_settled_target() -> None:
    """Flat rows are left by the shortlists to the full vocabulary."""
    logits = make_logits("flat")
    sampler = Sampler(make_sampling(1.0, top_p=0.95, logprobs=2), 2, [], VOCAB_SIZE, "cpu")
    found = sampler.answers(logits, make_tree(), TOKENS, num_candidates=3)
    expected = logits.log_softmax(dim=1)
    assert found.logprobs is not None and found.top_logprobs is not None
    np.testing.assert_allclose(found.logprobs, expected[np.arange(NUM_ROWS), found.targets], atol=1e-5)
    np.testing.assert_allclose(found.top_logprobs, expected.topk(2, dim=1).values, atol=1e-5)
