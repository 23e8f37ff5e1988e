"""Trees of heads' guesses: the likeliest paths, best first; hit rates that correct what heads say."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from lp.methods.medusa import HitRates, Ranked, grow


def make_heads(seed: int, num_heads: int = 3, num_guesses: int = 4) -> list[Ranked]:
    rng = random.Random(seed)
    heads = []
    for head in range(num_heads):
        odds = sorted((rng.random() for _ in range(num_guesses)), reverse=True)
        heads.append(Ranked([10 * head + place for place in range(num_guesses)], odds))
    return heads


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [0, 1, 7, 30, 1000])
def test_the_likeliest_paths_are_taken_best_first(seed: int, most: int) -> None:
    heads = make_heads(seed)
    every = [
        math.prod(heads[depth].odds[place] for depth, place in enumerate(path))
        for length in range(1, len(heads) + 1)
        for path in itertools.product(range(4), repeat=length)
    ]
    grown = grow(heads, most)
    assert grown.odds == pytest.approx(sorted(every, reverse=True)[:most])
    for row, (token, parent, depth, odds) in enumerate(zip(*grown, strict=True), start=1):
        assert parent < row and token in heads[depth - 1].tokens
        above = grown.odds[parent - 1] if parent else 1.0
        assert depth == (grown.depths[parent - 1] if parent else 0) + 1
        assert odds == pytest.approx(above * heads[depth - 1].odds[token - 10 * (depth - 1)])


def test_without_heads_there_are_no_drafts() -> None:
    assert grow([], 5).tokens == []


def test_hit_rates_correct_what_a_head_says_too_much_or_too_little() -> None:
    rates = HitRates(1, 2)
    assert rates.ranked(0, [4, 5], [0.5, 0.25]) == Ranked([4, 5], [0.5, 0.25])
    for _ in range(300):  # the second guess is always right
        rates.learn(0, [4, 5], [0.5, 0.25], right=5)
    tokens, odds = rates.ranked(0, [4, 5], [0.5, 0.25])
    assert tokens == [5, 4] and odds[0] > 0.8 and odds[1] < 0.1
    assert rates.ranked(0, [4, 5], [0.5, 0.9]).odds[0] == 0.99, "no path is as likely as a longer one"
