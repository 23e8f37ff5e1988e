"""Tokens are drawn with exactly the probabilities of the model's distribution.

The model has so few tokens that the probabilities of all pairs of tokens can be computed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.platform.library import python_alone
from lp.sampling.noise import gumbel_of, row_keys
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree, TreeBuilder, verify
from tests.models import EOS, load_reference, save_checkpoint
from tests.slow import slow_except

SMALL_VOCAB = 9
SMALL_PROMPT = [3, 7, 5]
NUM_SEEDS = 4000
DRAWN = {"plain": Sampling(temperature=1.0), "warped": Sampling(temperature=0.8, top_k=6, top_p=0.95)}


class SmallModel:
    """A tiny model, and its logits for the first new token and, after every first token, for the second."""

    def __init__(self, folder: Path):
        save_checkpoint(folder, "llama", seed=4, vocab_size=SMALL_VOCAB)
        self.engine = Engine.from_pretrained(str(folder), device="cpu")
        reference = load_reference(folder)
        builder = TreeBuilder(SMALL_PROMPT[-1])
        for token in range(SMALL_VOCAB):
            builder.add(token, 0)
        self.tree: TokenTree = builder.build()
        texts = [SMALL_PROMPT, *([*SMALL_PROMPT, token] for token in range(SMALL_VOCAB))]
        with torch.inference_mode():
            self.logits = torch.stack([reference(torch.tensor([text])).logits[0, -1] for text in texts])

    def sampler(self, sampling: Sampling) -> Sampler:
        complete = sampling.with_defaults(self.engine.checkpoint.generation)
        return Sampler(complete, len(SMALL_PROMPT), [EOS], SMALL_VOCAB, "cpu")

    def probabilities(self, sampling: Sampling) -> np.ndarray:
        """[V, V] the probabilities of all pairs of first and second token."""
        scores = self.sampler(dataclasses.replace(sampling, seed=0)).scores(self.logits, self.tree, SMALL_PROMPT)
        each = scores.double().softmax(dim=-1)
        return (each[0][:, None] * each[1:]).numpy()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return SmallModel(tmp_path_factory.mktemp("small"))


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value of Pearson's test; cells that are expected fewer than five times are pooled."""
    expected = probabilities * counts.sum()
    often = expected >= 5
    rare = expected[~often].sum()
    if not rare:
        return 0.0 if counts[~often].any() else stats.chisquare(counts[often], expected[often]).pvalue
    observed = np.append(counts[often], counts[~often].sum())
    return float(stats.chisquare(observed, np.append(expected[often], rare)).pvalue)


def count_pairs(pairs: list[list[int]]) -> np.ndarray:
    """[V, V] how often each pair was drawn."""
    counts = np.zeros((SMALL_VOCAB, SMALL_VOCAB))
    for (first, second), count in Counter(map(tuple, pairs)).items():
        counts[first, second] = count
    return counts


def draw(small: SmallModel, sampling: Sampling, num_seeds: int) -> list[list[int]]:
    """The first two tokens for each seed, by verifying a tree that has every first token as a draft."""
    pairs = []
    for seed in range(num_seeds):
        sampler = small.sampler(dataclasses.replace(sampling, seed=seed))
        pairs.append(verify(small.tree, sampler.answers(small.logits, small.tree, SMALL_PROMPT).targets).tokens)
    return pairs


@pytest.mark.parametrize("name", slow_except(DRAWN, "warped"))
def test_pairs_of_tokens_have_their_exact_probabilities(name: str, small: SmallModel) -> None:
    probabilities = small.probabilities(DRAWN[name])
    assert probabilities.sum() == pytest.approx(1.0)
    assert (probabilities * NUM_SEEDS >= 5).sum() >= 12, "too few cells to show anything"
    assert chi_square_p(count_pairs(draw(small, DRAWN[name], NUM_SEEDS)), probabilities) > 1e-4


@pytest.mark.parametrize(
    "how", slow_except([Autoregressive(), Lookahead(3, 3, 4)], Lookahead(3, 3, 4)), ids=lambda how: how.method
)
def test_the_engine_draws_the_same_pairs(how, small: SmallModel) -> None:
    """With either method, every seed gives the tokens that the sampler draws from the exact logits."""
    sampling, stop, num_seeds = DRAWN["plain"], Stopping(2, ignore_eos=True), 300
    pairs = []
    for seed in range(num_seeds):
        seeded = dataclasses.replace(sampling, seed=seed)
        pairs.append(small.engine.generate(SMALL_PROMPT, decode=how, sampling=seeded, stopping=stop).token_ids)
    assert pairs == draw(small, sampling, num_seeds)
    assert chi_square_p(count_pairs(pairs), small.probabilities(sampling)) > 1e-4


@pytest.mark.parametrize("bias", slow_except(["colder", "correlated"], "colder"))
def test_biased_noise_is_found(bias: str, small: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above rejects noise that is a little too small, and noise that both positions share."""

    if bias == "colder":
        monkeypatch.setattr("lp.sampling.noise.gumbel_of", lambda keys, tokens: 0.8 * gumbel_of(keys, tokens))
    else:
        monkeypatch.setattr("lp.sampling.sampler.row_keys", lambda seed, _: row_keys(seed, [0]))
    with python_alone():
        pairs = draw(small, DRAWN["plain"], NUM_SEEDS)
    assert chi_square_p(count_pairs(pairs), small.probabilities(DRAWN["plain"])) < 1e-6
