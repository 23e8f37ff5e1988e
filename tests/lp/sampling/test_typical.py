"""Typical acceptance follows the formula of arXiv 2401.10774, section 2.3.1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lp.sampling.couplings import Draws, Given, thresholds, typical
from lp.sampling.sampler import Sampler
from lp.sampling.settings import Sampling
from lp.tree import Coupled, Proposal, TreeBuilder

VOCAB = 12


def needed(probabilities: list[float], epsilon: float, delta: float) -> float:
    """The formula, written out."""
    entropy = -sum(own * math.log(own) for own in probabilities if own > 0)
    return min(epsilon, delta * math.exp(-entropy))


def distributions(num_rows: int = 40) -> torch.Tensor:
    """From flat ones to sharp ones, some with tokens that cannot be."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(num_rows, VOCAB, generator=generator) * torch.linspace(0, 8, num_rows)[:, None]
    scores[::3, 7:] = -torch.inf
    return scores.softmax(dim=1)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.09), (0.01, 1.0), (1.0, 1.0)])
def test_the_formula(epsilon: float, delta: float) -> None:
    probabilities = distributions()
    children = [tuple(np.random.default_rng(row).permutation(VOCAB)[: row % 5].tolist()) for row in range(40)]
    usual = probabilities.argmin(dim=1)
    given = Given(probabilities, [Proposal(own) for own in children], usual, Draws(1, np.arange(40)))
    found = typical(given, epsilon, delta).tolist()
    bounds = thresholds(probabilities, epsilon, delta)
    num_accepted = 0
    for row, own in enumerate(probabilities.double().tolist()):
        least = needed(own, epsilon, delta)
        assert float(bounds[row]) == pytest.approx(least, rel=1e-4)
        accepted = [token for token in children[row] if own[token] > least]
        assert found[row] == (accepted[0] if accepted else int(usual[row]))
        num_accepted += bool(accepted)
    assert 0 < num_accepted < 32, "some are accepted, and some are not"


def sampler(temperature: float, seed: int) -> Sampler:
    settings = Sampling(temperature, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, min_new_tokens=0, seed=seed)
    return Sampler(settings, 1, [], VOCAB, "cpu")


def test_by_the_sampler_it_depends_on_the_temperature_and_never_changes_greedy_text() -> None:
    """A sampled row takes a likely draft rather than what the noise draws; a greedy one only its best token."""
    builder = TreeBuilder(1)
    for token in (5, 3):
        builder.add(token, 0)
    tree = builder.build()
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 3.0, 3.5  # 5 is unlikely, 3 nearly as likely as the best
    logits = logits.repeat(3, 1)
    lossy = type(tree)(
        tree.tokens, tree.parents, tree.depths, coupled=Coupled.of_children(tree, "typical", (0.09, 0.3))
    )
    drawn = {int(sampler(1.0, seed).answers(logits, tree, [1]).targets[0]) for seed in range(30)}
    taken = {int(sampler(1.0, seed).answers(logits, lossy, [1]).targets[0]) for seed in range(30)}
    assert taken == {3} and len(drawn) > 1, "without the coupling, what the noise draws"
    assert sampler(0.0, 1).answers(logits, lossy, [1]).targets[0] == 4
    assert {int(sampler(9.0, seed).answers(logits, lossy, [1]).targets[0]) for seed in range(5)} == {5}
