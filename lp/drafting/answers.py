"""The model's answers, its best tokens, by the last two tokens of the path that it answered and by the last one.

R rows, P pairs of tokens, T single tokens, K candidates of each answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from lp.drafting.contexts import BITS, OFFSET, mask

TOKEN, PAIR = mask(1), mask(2)

# Most answers kept by two tokens, and by one; the oldest are dropped first.
CAPACITY = 1 << 17


class NewestAnswers:
    """The newest answers after two tokens and after one, in bounded memory.

    pairs, tokens: answers by contexts of two tokens and of one (see contexts.py), best token first.
    """

    def __init__(self, capacity: int = CAPACITY):
        self.capacity = capacity
        self.pairs: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.pairs) + len(self.tokens)

    def add(self, pairs: Sequence[int], best: Sequence[tuple[int, ...]], right_rows: Sequence[int]) -> None:
        """Keeps the answers of rows, and drops the oldest where there are too many.

        pairs: [R] the context of two tokens in which each row's path ends. best: [R] answers. right_rows: see `put`.
        """
        put(self.pairs, pairs, best, right_rows)
        put(self.tokens, [pair & TOKEN for pair in pairs], best, right_rows)
        self.trim()

    def trim(self) -> None:
        """Drops the oldest answers where there are too many."""
        for table in (self.pairs, self.tokens):
            while len(table) > self.capacity:
                del table[next(iter(table))]

    def find(self, path: int) -> tuple[int, ...] | None:
        """The answer after the last two tokens of a path, else the one after its last token."""
        return self.pairs.get(path & PAIR) or self.tokens.get(path & TOKEN)


class AnswerIndex:
    """Answers that do not change, as answer_index.py reads them from a file.

    name: the model that gave them. digest: a checksum of the file, equal on all ranks that read the same one. pairs,
    tokens: [P] and [T] int64, contexts of two tokens and of one (see contexts.py). pair_answers, token_answers: [P, K]
    and [T, K] int32.
    """

    def __init__(self, name: str, digest: str, arrays: Mapping[str, np.ndarray]):
        """arrays: pairs [P, 2], pair_answers [P, K], tokens [T], token_answers [T, K], all int32."""
        self.name, self.digest = name, digest
        self.pair_answers, self.token_answers = arrays["pair_answers"], arrays["token_answers"]
        self.pairs = (arrays["pairs"].astype(np.int64) + OFFSET) @ np.array([1 << BITS, 1])
        self.tokens = arrays["tokens"].astype(np.int64) + OFFSET

    @cached_property
    def _row_of_pair(self) -> dict[int, int]:
        return dict(zip(self.pairs.tolist(), range(len(self.pairs)), strict=True))

    @cached_property
    def _row_of_token(self) -> dict[int, int]:
        return dict(zip(self.tokens.tolist(), range(len(self.tokens)), strict=True))

    @property
    def num_pairs(self) -> int:
        return len(self.pairs)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def newest(self, capacity: int) -> NewestAnswers:
        """The same answers, to which others can be added."""
        found = NewestAnswers(capacity)
        found.pairs.update(zip(self.pairs.tolist(), map(tuple, self.pair_answers.tolist()), strict=True))
        found.tokens.update(zip(self.tokens.tolist(), map(tuple, self.token_answers.tolist()), strict=True))
        return found

    def after_two(self, path: int) -> list[int] | None:
        """[K] the answer after the last two tokens of a path."""
        row = self._row_of_pair.get(path & PAIR)
        return None if row is None else self.pair_answers[row].tolist()

    def after_one(self, path: int) -> list[int] | None:
        """[K] the answer after the last token of a path."""
        row = self._row_of_token.get(path & TOKEN)
        return None if row is None else self.token_answers[row].tolist()


def priors(best: float, num_candidates: int) -> list[float]:
    """[K] how likely each candidate of an answer is right before any was counted. best: that of the best one."""
    return [best * 0.45**rank for rank in range(num_candidates)]


def put(
    table: dict[int, tuple[int, ...]],
    keys: Sequence[int],
    best: Sequence[tuple[int, ...]],
    right_rows: Iterable[int],
) -> None:
    """Puts the answers of rows into a table.

    keys: [R]. best: [R] answers. Of several rows with the same key, the last of `right_rows` among them is kept, or
    else the first row.
    """
    table.update(zip(reversed(keys), reversed(best), strict=True))
    for row in right_rows:
        table[keys[row]] = best[row]
