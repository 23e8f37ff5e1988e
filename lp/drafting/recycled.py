"""Recycled answers: the best tokens that the model gave after a token, from every row it has computed, right or wrong
(Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling", 2024).

They are kept by the last two tokens of the row's path and by the last one. Under sampling they are kept by position as
well: with the noise of the same position, the same token is likely to come out on top. The newest answers for each
position, whatever the token before it, are for tokens that the model has not been asked about yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from lp.drafting.contexts import BITS, mask

TOKEN, PAIR = mask(1), mask(2)
PLACE = 2 * BITS
"""Where a position stands in a key, above the pair."""

MOST_PLACES = 4096
"""Answers kept by position before those that the text has passed are dropped."""


class Match(IntEnum):
    """What a row and the one asked about have in common, closest first."""

    pair_and_place = 0
    token_and_place = 1
    pair = 2
    token = 3
    place = 4


class RecycledAnswers:
    """The newest answers of each kind, in bounded memory."""

    def __init__(self, capacity: int, by_place: bool):
        """capacity: answers of each kind; the oldest are forgotten first. by_place: under sampling."""
        self.capacity = capacity
        self.by_place = by_place
        self._pairs: dict[int, tuple[int, ...]] = {}
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._pairs_at: dict[int, tuple[int, ...]] = {}
        self._tokens_at: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, tuple[int, ...]] = {}

    def add(self, pairs: list[int], positions: list[int], answers: np.ndarray, right_rows: Sequence[int]) -> None:
        """answers: [R, K] for each row, the best tokens after its pair (a context of two), which ends at a position.

        Of rows that are alike an earlier one counts more, and most one of `right_rows`, the later the more.
        """
        tokens, places = [pair & TOKEN for pair in pairs], [position << PLACE for position in positions]
        tables = [(self._pairs, pairs), (self._tokens, tokens), (self._places, places)]
        if self.by_place:
            tables.append((self._pairs_at, [place | pair for place, pair in zip(places, pairs, strict=True)]))
            tables.append((self._tokens_at, [place | token for place, token in zip(places, tokens, strict=True)]))
        best = list(zip(*answers.T.tolist(), strict=True))  # tuples, which the garbage collector soon lets be
        for table, keys in tables:
            table.update(zip(reversed(keys), reversed(best), strict=True))
            for row in right_rows:
                table[keys[row]] = best[row]

    def forget(self, before: int) -> None:
        """Drops what is too much: answers for positions that the text has passed, then the oldest."""
        place = before << PLACE
        if len(self._pairs_at) > MOST_PLACES:
            self._pairs_at = {key: best for key, best in self._pairs_at.items() if key >= place}
            self._tokens_at = {key: best for key, best in self._tokens_at.items() if key >= place}
        if len(self._places) > MOST_PLACES:
            self._places = {key: best for key, best in self._places.items() if key >= place}
        while len(self._pairs) > self.capacity:
            del self._pairs[next(iter(self._pairs))]
        while len(self._tokens) > self.capacity:
            del self._tokens[next(iter(self._tokens))]

    def lookup(self, context: int, position: int) -> list[tuple[Match, tuple[int, ...]]]:
        """Answers of the closest match at the same place, and of the closest one anywhere."""
        pair, token, place = context & PAIR, context & TOKEN, position << PLACE
        found: list[tuple[Match, tuple[int, ...]]] = []
        if self.by_place:
            if (best := self._pairs_at.get(place | pair)) is not None:
                found.append((Match.pair_and_place, best))
            elif (best := self._tokens_at.get(place | token)) is not None:
                found.append((Match.token_and_place, best))
            elif (best := self._places.get(place)) is not None:
                found.append((Match.place, best))
        if (best := self._pairs.get(pair)) is not None:
            found.append((Match.pair, best))
        elif (best := self._tokens.get(token)) is not None:
            found.append((Match.token, best))
        if not found and (best := self._places.get(place)) is not None:
            found.append((Match.place, best))
        return found
