"""Recycled answers: the best tokens that the model gave after a token, from every row it has computed, right or wrong
(Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling", 2024).

They are kept by the last two tokens of the row's path and by the last one. Under sampling they are kept by position as
well: with the noise of the same position, the same token is likely to come out on top. The newest answers for each
position, whatever the token before it, are for tokens that the model has not been asked about yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

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
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._pairs_at: dict[tuple[int, int, int], list[int]] = {}
        self._tokens_at: dict[tuple[int, int], list[int]] = {}
        self._places: dict[int, list[int]] = {}

    def add(
        self, previous: Sequence[int], tokens: Sequence[int], positions: Sequence[int], answers: Sequence[list[int]]
    ) -> None:
        """answers: for each row, the best tokens after its token, which stands at a position behind a previous token.
        Of rows that are alike the last counts.
        """
        self._pairs.update(zip(zip(previous, tokens, strict=True), answers, strict=True))
        self._tokens.update(zip(tokens, answers, strict=True))
        self._places.update(zip(positions, answers, strict=True))
        if self.by_place:
            self._pairs_at.update(zip(zip(previous, tokens, positions, strict=True), answers, strict=True))
            self._tokens_at.update(zip(zip(tokens, positions, strict=True), answers, strict=True))

    def forget(self, before: int) -> None:
        """Drops what is too much: answers for positions that the text has passed, then the oldest."""
        if len(self._pairs_at) > MOST_PLACES:
            self._pairs_at = {key: answers for key, answers in self._pairs_at.items() if key[2] >= before}
            self._tokens_at = {key: answers for key, answers in self._tokens_at.items() if key[1] >= before}
        if len(self._places) > MOST_PLACES:
            self._places = {position: answers for position, answers in self._places.items() if position >= before}
        while len(self._pairs) > self.capacity:
            del self._pairs[next(iter(self._pairs))]
        while len(self._tokens) > self.capacity:
            del self._tokens[next(iter(self._tokens))]

    def lookup(self, previous: int, token: int, position: int) -> list[tuple[Match, list[int]]]:
        """Answers of the closest match at the same place, and of the closest one anywhere."""
        found: list[tuple[Match, list[int]]] = []
        if self.by_place:
            if answers := self._pairs_at.get((previous, token, position)):
                found.append((Match.pair_and_place, answers))
            elif answers := self._tokens_at.get((token, position)):
                found.append((Match.token_and_place, answers))
            elif answers := self._places.get(position):
                found.append((Match.place, answers))
        if answers := self._pairs.get((previous, token)):
            found.append((Match.pair, answers))
        elif answers := self._tokens.get(token):
            found.append((Match.token, answers))
        if not found and (answers := self._places.get(position)):
            found.append((Match.place, answers))
        return found
