"""Verification: which of a tree's nodes turned out right. Greedy decoding and sampling share it, as targets are
deterministic in both (docs/design.md, "Sampling"). Knows nothing of models or ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lp.tree import TokenTree, descend

NOT_A_TOKEN = -1
"""The target of a row whose logits are not numbers."""


class Accepted(NamedTuple):
    """What a step yields.

    tokens: at least one; the last is the bonus token, which no row has computed yet.
    rows: for each token, the row whose target it is (row 0, the root, first).
    drafted: for each token but the last, all rows that had guessed it.
    """

    tokens: list[int]
    rows: list[int]
    drafted: list[list[int]]


@dataclass
class Drafted:
    """The draft tokens of one step, by the source that they came from.

    proposed: how many each source proposed. accepted: the source of each accepted token but the last, in order.
    """

    proposed: Counter[str]
    accepted: list[str]


@dataclass(frozen=True)
class Answers:
    """What the model answers for each row of a tree.

    targets: [R] int64, the token that follows the row's path, or NOT_A_TOKEN.
    candidates: [R, K] the K best tokens, best first: the target and what came next to it, or None if not asked for.
    logprobs: [R] float32 of the target under the unprocessed distribution, or None if not asked for.
    top_tokens, top_logprobs: [R, K] the K likeliest alternatives of the same distribution, best first.
    """

    targets: np.ndarray
    candidates: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None

    def pack(self) -> np.ndarray:
        """[R, C] int32: all there is, floats by their bits. C = max(K, 1), and 1 + 2T more with T log-probabilities."""
        first = self.targets[:, None] if self.candidates is None else self.candidates
        columns = [first.astype(np.int32)]
        if self.logprobs is not None and self.top_tokens is not None and self.top_logprobs is not None:
            columns.append(self.logprobs.astype(np.float32)[:, None].view(np.int32))
            columns.append(self.top_tokens.astype(np.int32))
            columns.append(np.ascontiguousarray(self.top_logprobs, dtype=np.float32).view(np.int32))
        return np.concatenate(columns, axis=1)

    @staticmethod
    def unpack(packed: np.ndarray, num_candidates: int = 0) -> Answers:
        """The inverse of `pack`. num_candidates: K, 0 if they were not asked for."""
        first = max(1, num_candidates)
        targets = packed[:, 0].astype(np.int64)
        candidates = packed[:, :num_candidates] if num_candidates else None
        if packed.shape[1] == first:
            return Answers(targets, candidates)
        num_top = (packed.shape[1] - first - 1) // 2
        floats = np.ascontiguousarray(packed).view(np.float32)
        top_tokens = packed[:, first + 1 : first + 1 + num_top]
        return Answers(targets, candidates, floats[:, first], top_tokens, floats[:, first + 1 + num_top :])


def verify(tree: TokenTree, targets: np.ndarray, num_verified: int | None = None) -> Accepted:
    """Walks from the root: while a child holds the node's target, step to it. Every target met is emitted.

    num_verified: the rows that may be stepped to are the first so many; None is all.
    """
    first = tree.children[0] if num_verified is None else [row for row in tree.children[0] if row < num_verified]
    answers = targets.tolist()
    levels = descend(tree, first, lambda _, row: answers[row])
    rows = [0, *(level[0] for level in levels)]
    return Accepted([answers[row] for row in rows], rows, levels)


def as_guesses(targets: np.ndarray) -> np.ndarray:
    """Targets as guesses for later steps, where any token will do in place of none."""
    return np.maximum(targets, 0)
