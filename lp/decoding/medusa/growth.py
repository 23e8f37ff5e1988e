"""Trees of what heads guess, grown best first: a draft after each path, from the head for its depth.

H heads, G guesses of each
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# The most that a draft's probability is taken to be, so that no path is as likely as a longer one.
MOST_SURE = 0.99


class Ranked(NamedTuple):
    """What one head guesses, the likeliest first, and how likely each token is."""

    tokens: list[int]
    odds: list[float]


class Grown(NamedTuple):
    """Drafts in the order of their probability. Each draft's parent, a row of the tree, comes before it; row 0 is the
    root. odds: the probability that all drafts down to this one are accepted.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    odds: list[float]


def grow(heads: Sequence[Ranked], most: int) -> Grown:
    """The likeliest paths through the heads' guesses, at most so many drafts. heads: by depth, from 1."""
    grown = Grown([], [], [], [])
    # Of each draft that may come next: its negated probability, a number that breaks ties, its parent's row, its
    # depth, its place among the head's guesses, and the parent's probability.
    waiting: list[tuple[float, int, int, int, int, float]] = []
    count = 0

    def offer(parent: int, depth: int, place: int, above: float) -> None:
        nonlocal count
        if depth <= len(heads) and place < len(heads[depth - 1].tokens):
            count += 1
            heapq.heappush(waiting, (-above * heads[depth - 1].odds[place], count, parent, depth, place, above))

    offer(0, 1, 0, 1.0)
    while waiting and len(grown.tokens) < most:
        negated, _, parent, depth, place, above = heapq.heappop(waiting)
        grown.tokens.append(heads[depth - 1].tokens[place])
        grown.parents.append(parent)
        grown.depths.append(depth)
        grown.odds.append(-negated)
        offer(parent, depth, place + 1, above)
        offer(len(grown.tokens), depth + 1, 0, -negated)
    return grown


class HitRates:
    """How often guesses were right, by head and place, against how often their probabilities said they would be.

    A head is asked what follows whatever path; its guess counts only where all drafts above it were right.
    """

    # Each trial multiplies the weight of all earlier ones by this.
    DECAY = 0.98
    # What the heads' own probabilities count for, in right guesses.
    PRIOR = 2.0

    def __init__(self, num_heads: int, num_guesses: int):
        self._right = [[self.PRIOR] * num_guesses for _ in range(num_heads)]
        self._expected = [[self.PRIOR] * num_guesses for _ in range(num_heads)]

    def ranked(self, head: int, tokens: Sequence[int], odds: Sequence[float]) -> Ranked:
        """A head's guesses by the probability that they are right where their turn comes."""
        rates = zip(self._right[head], self._expected[head], strict=True)
        likely = [min(MOST_SURE, own * right / said) for own, (right, said) in zip(odds, rates, strict=False)]
        ranks = sorted(range(len(likely)), key=lambda rank: -likely[rank])
        return Ranked([tokens[rank] for rank in ranks], [likely[rank] for rank in ranks])

    def learn(self, head: int, tokens: Sequence[int], odds: Sequence[float], right: int) -> None:
        """Counts a head's guesses where a token turned out to be right."""
        all_right, expected = self._right[head], self._expected[head]
        for rank, (token, own) in enumerate(zip(tokens, odds, strict=True)):
            all_right[rank] = self.PRIOR + self.DECAY * (all_right[rank] - self.PRIOR) + (token == right)
            expected[rank] = self.PRIOR + self.DECAY * (expected[rank] - self.PRIOR) + own

    def state(self) -> object:
        """All that it knows, for a checksum."""
        return self._right, self._expected
