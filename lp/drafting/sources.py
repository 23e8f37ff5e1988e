"""The sources of drafts and what they know of one sequence: which candidates may follow a context, and of which kind.

A kind is a source, how well its match fits and the rank of a candidate in it; what a kind is worth is learnt elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lp.drafting.contexts import FOLLOWERS, ContextIndex
from lp.drafting.growth import Proposals
from lp.drafting.recycled import Match, RecycledAnswers
from lp.methods import Auto
from lp.tree import TokenTree

SUFFIX_LENGTHS = (1, 2, 3, 4, 6, 8)
"""Contexts by which prompt and output are indexed, longest match first."""
WINDOW_LENGTHS = (1, 2, 3, 4)
CONTEXT = SUFFIX_LENGTHS[-1]
"""Tokens that a source may look at."""
LARGEST_INDEX = 1 << 20
LARGEST_RECYCLED = 1 << 17
CLOSENESS = {
    Match.pair_and_place: 0.6,
    Match.token_and_place: 0.5,
    Match.pair: 0.5,
    Match.token: 0.4,
    Match.place: 0.2,
}
"""What the best of recycled answers is taken to be worth before any have been seen."""
NO_TOKEN = -1
"""In the place of the token before the first."""


class Kinds:
    """Numbers of all kinds: those of a source, of a match and of a rank lie side by side."""

    def __init__(self, num_candidates: int):
        self.num_candidates = num_candidates
        self.suffix = 0
        self.shared = self.suffix + len(SUFFIX_LENGTHS) * FOLLOWERS
        self.window = self.shared + len(SUFFIX_LENGTHS) * FOLLOWERS
        self.recycled = self.window + len(WINDOW_LENGTHS) * FOLLOWERS
        self.number = self.recycled + len(Match) * num_candidates

    def source(self, kind: int) -> str:
        if kind < self.shared:
            return "suffix"
        if kind < self.window:
            return "shared"
        return "window" if kind < self.recycled else "recycled"

    def priors(self) -> list[float]:
        """What to expect of each kind before it has been seen: longer matches and better ranks are worth more."""
        by_rank = [0.3**rank for rank in range(FOLLOWERS)]
        text = [min(0.9, 0.3 + 0.1 * length) * share for length in SUFFIX_LENGTHS for share in by_rank]
        window = [(0.15 + 0.1 * length) * share for length in WINDOW_LENGTHS for share in by_rank]
        recycled = [CLOSENESS[match] * 0.45**rank for match in Match for rank in range(self.num_candidates)]
        return text + text + window + recycled


class Sources:
    """What may follow a context of one sequence."""

    def __init__(
        self,
        kinds: Kinds,
        prompt: Sequence[int],
        settings: Auto,
        is_sampled: bool,
        shared: ContextIndex | None,
    ):
        """settings: say which sources there are. shared: that of earlier requests, or None."""
        self.kinds = kinds
        self.root_position = 0
        self._suffix = ContextIndex(SUFFIX_LENGTHS, LARGEST_INDEX) if settings.suffix_drafts else None
        self._ngrams = ContextIndex(WINDOW_LENGTHS, LARGEST_INDEX) if settings.window_drafts else None
        self._recycled = RecycledAnswers(LARGEST_RECYCLED, is_sampled) if settings.recycled_drafts else None
        self._shared = shared
        for index in (self._suffix, self._shared):
            if index is not None:
                index.add_text(prompt)

    def propose(self, context: tuple[int, ...], depth: int) -> Proposals:
        """Ranked candidates by kind, for what follows a context that ends `depth` tokens after the root."""
        kinds = self.kinds
        proposals: Proposals = []
        if self._suffix is not None and (found := self._suffix.lookup(context)):
            proposals.append((kinds.suffix + found[0] * FOLLOWERS, found[1]))
        if self._shared is not None and (found := self._shared.lookup(context)):
            proposals.append((kinds.shared + found[0] * FOLLOWERS, found[1]))
        if self._ngrams is not None and (found := self._ngrams.lookup(context)):
            proposals.append((kinds.window + found[0] * FOLLOWERS, found[1]))
        if self._recycled is not None:
            previous, token = (NO_TOKEN, *context)[-2:]
            for match, answers in self._recycled.lookup(previous, token, self.root_position + depth):
                proposals.append((kinds.recycled + match * kinds.num_candidates, answers))
        return proposals

    def learn_text(self, tokens: list[int], num_new: int) -> None:
        """The end of the sequence, of which the last `num_new` tokens are new."""
        for index in (self._suffix, self._shared):
            if index is not None:
                index.add_text(tokens, len(tokens) - num_new)

    def learn_ngrams(self, ngrams: list[tuple[int, ...]]) -> None:
        """The window's."""
        if self._ngrams is not None:
            for ngram in ngrams:
                self._ngrams.add(ngram[:-1], ngram[-1])

    def learn_answers(self, tree: TokenTree, before_root: int, answers: np.ndarray, right_rows: list[int]) -> None:
        """The K best tokens [R, K] after each row of a tree; rows whose path was right count most, likely ones more."""
        if self._recycled is None:
            return
        order = np.concatenate([np.arange(len(tree))[::-1], right_rows])
        tokens = tree.tokens[order]
        previous = np.where(order == 0, before_root, tree.tokens[tree.parents[order]])
        positions = tree.depths[order] + self.root_position
        self._recycled.add(previous.tolist(), tokens.tolist(), positions.tolist(), answers[order].tolist())
        self._recycled.forget(before=self.root_position)
