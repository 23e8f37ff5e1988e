"""Estimates approach the observed frequencies and forget old observations."""

from __future__ import annotations

import random

import pytest

from lp.drafting.drafter import Estimates


def test_estimates_start_as_the_priors() -> None:
    assert list(Estimates([0.5, 0.25]).probabilities) == [0.5, 0.25]


def test_the_share_of_right_candidates_is_learnt_by_rank() -> None:
    rng = random.Random(0)
    estimates = Estimates([0.9, 0.9, 0.9])
    for _ in range(2000):
        estimates.learn(0, [1, 2, 3], rng.choices([1, 2, 9], [0.6, 0.3, 0.1])[0])
    assert list(estimates.probabilities) == pytest.approx([0.6, 0.3, 0.0], abs=0.1)


def test_kinds_that_were_not_proposed_learn_nothing() -> None:
    estimates = Estimates([0.5, 0.5, 0.5, 0.5])
    estimates.learn(1, [7, 8], 8)
    assert estimates.probabilities[0] == estimates.probabilities[3] == 0.5
    assert estimates.probabilities[1] < 0.5 < estimates.probabilities[2]


def test_a_change_of_the_text_is_noticed_within_a_few_hundred_trials() -> None:
    estimates = Estimates([0.5])
    for _ in range(1000):
        estimates.learn(0, [1], 1)
    for _ in range(300):
        estimates.learn(0, [1], 2)
    assert estimates.probabilities[0] < 0.1
