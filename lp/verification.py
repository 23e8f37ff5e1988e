"""Verification finds the rows of a tree that the model's answers confirm. Knows nothing of models or ranks.

Greedy decoding and sampling share it, as targets are deterministic in both (docs/design.md, "Sampling").

    R rows of a tree, K candidates of a row, T alternatives of a row with log-probabilities, H heads, G guesses of each
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lp.host import trees
from lp.host.library import library
from lp.tree import TokenTree, descend

# The target of a row whose logits are NaN, and of one that no token may follow: a grammar allows nothing that the
# other settings allow.
NOT_A_TOKEN, DEAD_END = -1, -2


class Accepted(NamedTuple):
    """What a step yields.

    tokens: at least one. The last is the bonus token: it was in no row of the tree.
    rows: for each token, the row whose target it is; the first is row 0, the root.
    drafted: for each token but the last, all rows that had guessed it.
    """

    tokens: list[int]
    rows: list[int]
    drafted: list[list[int]]


@dataclass
class Drafted:
    """The draft tokens of one step, by source.

    proposed: how many drafts each source proposed. accepted: the source of each accepted draft, in order.
    """

    proposed: Counter[str]
    accepted: list[str]


# Counts a step's drafts when it is called, which can wait until the next step has been started.
CountDrafts = Callable[[], Drafted]


def count_drafts(sources: Sequence[str], kinds: Sequence[int], accepted: Accepted) -> Drafted:
    """Counts drafts by source. A window cell counts if it was accepted and no draft had the same path.

    sources: the source of each kind. kinds: of the root and each draft; the window's cells come after them.
    """
    numbers: list[int] = np.asarray(kinds).tolist()
    proposed = Counter(sources[kind] for kind in numbers[1:])
    right: list[str] = []
    for rows in accepted.drafted:
        row = next((row for row in rows if row < len(kinds)), None)
        if row is None:
            proposed["window"] += 1
        right.append("window" if row is None else sources[kinds[row]])
    return Drafted(proposed, right)


_NO_DRAFTS = Drafted(Counter(), [])


def no_drafts() -> Drafted:
    """Returns the count of a step without drafts."""
    return _NO_DRAFTS


class Ahead(NamedTuple):
    """What is asked of a model's heads for each row: H, how many of them, and G, how many tokens of each."""

    num_heads: int
    num_guesses: int

    @property
    def num_columns(self) -> int:
        """The number of columns that the guesses take in packed answers."""
        return 2 * self.num_heads * self.num_guesses


class Guesses(NamedTuple):
    """What heads guess for each row: head h, from 0, the token h + 1 places behind the row's target.

    tokens: int32 [R, H, G], the likeliest first. odds: float32 [R, H, G], their probabilities.
    """

    tokens: np.ndarray
    odds: np.ndarray


@dataclass(slots=True)
class Answers:
    """What the model answers for each row of a tree.

    targets: [R] integers, the token that follows the row's path, NOT_A_TOKEN or DEAD_END.
    candidates: [R, K] the K best tokens, best first; the first is the target. None if not asked for.
    logprobs: [R] float32 log-probability of the target under the unprocessed distribution. None if not asked for.
    top_tokens, top_logprobs: [R, T] the T likeliest tokens of the same distribution, best first. None if not asked for.
    guesses: of heads. None if not asked for.
    """

    targets: np.ndarray
    candidates: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    guesses: Guesses | None = None

    @staticmethod
    def none() -> Answers:
        """The answers to no rows."""
        return Answers(np.empty(0, np.int64))

    def part(self, rows: slice | list[int]) -> Answers:
        """The answers for some of the rows."""
        every = (self.targets, self.candidates, self.logprobs, self.top_tokens, self.top_logprobs)
        part = Answers(*(None if some is None else some[rows] for some in every))  # pyright: ignore[reportArgumentType]
        part.guesses = self.guesses and Guesses(self.guesses.tokens[rows], self.guesses.odds[rows])
        return part

    def pack(self) -> np.ndarray:
        """All answers as int32 [R, C], floats by their bits: C = max(K, 1), plus 1 + 2T with log-probabilities, plus
        2HG with guesses.
        """
        first = self.targets[:, None] if self.candidates is None else self.candidates
        columns = [first.astype(np.int32)]
        if self.logprobs is not None and self.top_tokens is not None and self.top_logprobs is not None:
            columns.append(self.logprobs.astype(np.float32)[:, None].view(np.int32))
            columns.append(self.top_tokens.astype(np.int32))
            columns.append(np.ascontiguousarray(self.top_logprobs, dtype=np.float32).view(np.int32))
        if self.guesses is not None:
            columns.append(self.guesses.tokens.reshape(len(first), -1).astype(np.int32))
            columns.append(self.guesses.odds.reshape(len(first), -1).astype(np.float32).view(np.int32))
        return np.concatenate(columns, axis=1)

    @staticmethod
    def unpack(packed: np.ndarray, num_candidates: int = 0, ahead: Ahead | None = None) -> Answers:
        """The inverse of `pack`. num_candidates: K; 0 if candidates were not asked for. ahead: what was asked of heads;
        None for nothing.
        """
        if ahead is not None:
            answers = Answers.unpack(packed[:, : -ahead.num_columns], num_candidates)
            both = packed[:, -ahead.num_columns :].reshape(len(packed), 2, ahead.num_heads, ahead.num_guesses)
            answers.guesses = Guesses(both[:, 0], np.ascontiguousarray(both[:, 1]).view(np.float32))
            return answers
        first, targets = max(1, num_candidates), packed[:, 0]
        if packed.shape[1] == first:
            return Answers(targets, packed if num_candidates else None)
        candidates = packed[:, :num_candidates] if num_candidates else None
        num_top = (packed.shape[1] - first - 1) // 2
        floats = np.ascontiguousarray(packed).view(np.float32)
        top_tokens = packed[:, first + 1 : first + 1 + num_top]
        return Answers(targets, candidates, floats[:, first], top_tokens, floats[:, first + 1 + num_top :])


def verify(tree: TokenTree, targets: np.ndarray, num_verified: int | None = None) -> Accepted:
    """Walks from the root to the child that holds the present row's target, as long as there is one.

    The targets of all rows on the way are accepted. num_verified: only this many first rows count as children of the
    root; None is all rows.
    """
    answers = targets.tolist()
    if len(answers) == 1:
        return Accepted(answers, [0], [])
    num_verified = len(tree) if num_verified is None else num_verified
    if (native := library()) is not None:
        levels = trees.verify(native, tree.tokens, tree.parents, targets, num_verified)
    else:
        first = [row for row in tree.children[0] if row < num_verified]
        levels = descend(tree, first, lambda _, row: answers[row])
    rows = [0, *(level[0] for level in levels)]
    return Accepted([answers[row] for row in rows], rows, levels)


def as_guesses(targets: np.ndarray) -> np.ndarray:
    """Targets as guesses for later steps: NOT_A_TOKEN and DEAD_END become token 0, as any token will do."""
    return np.maximum(targets, 0)
