"""The sources of drafts and what they know of one sequence: which candidates may follow a context, and of which kind.

A kind is a source, how well its match fits and the rank of a candidate in it; what a kind is worth is learnt elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from lp.drafting.contexts import FOLLOWERS, LONGEST, ContextIndex, context_of, pairs
from lp.drafting.growth import Proposals
from lp.drafting.recycled import PAIR, Match, RecycledAnswers
from lp.methods import Auto
from lp.tree import TokenTree

SUFFIX_LENGTHS = (1, 2, 3, 4, 6, 8)
"""Contexts by which prompt and output are indexed, longest match first."""
WINDOW_LENGTHS = (1, 2, 3, 4)
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


class Kinds:
    """Numbers of all kinds: those of a source, of a match and of a rank lie side by side."""

    def __init__(self, num_candidates: int):
        self.num_candidates = num_candidates
        text, window = len(SUFFIX_LENGTHS) * FOLLOWERS, len(WINDOW_LENGTHS) * FOLLOWERS
        numbers = {"suffix": text, "shared": text, "window": window, "recycled": len(Match) * num_candidates}
        self.suffix, self.shared, self.window, self.recycled = accumulate([0, text, text, window])
        self.sources = [source for source, number in numbers.items() for _ in range(number)]
        """The source of each kind."""

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
        self.position, self.context = 0, context_of([])
        """Of the root."""
        self._suffix = ContextIndex(SUFFIX_LENGTHS, LARGEST_INDEX) if settings.suffix_drafts else None
        self._ngrams = (
            ContextIndex(WINDOW_LENGTHS[: settings.ngram - 1], LARGEST_INDEX) if settings.window_drafts else None
        )
        self._recycled = RecycledAnswers(LARGEST_RECYCLED, is_sampled) if settings.recycled_drafts else None
        self._shared = shared
        for index in (self._suffix, self._shared):
            if index is not None:
                index.add_text(context_of(prompt[:1]), prompt[1:])

    def move_to(self, tokens: Sequence[int]) -> None:
        """To the end of the sequence: the next root."""
        self.position = len(tokens) - 1
        self.context = context_of(tokens[-LONGEST:])

    def propose(self, context: int, depth: int) -> Proposals:
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
            for match, answers in self._recycled.lookup(context, self.position + depth):
                proposals.append((kinds.recycled + match * kinds.num_candidates, answers))
        return proposals

    def learn_text(self, tokens: Sequence[int]) -> None:
        """What followed the root."""
        for index in (self._suffix, self._shared):
            if index is not None:
                index.add_text(self.context, tokens)

    def learn_ngrams(self, ngrams: list[tuple[int, ...]]) -> None:
        """The window's."""
        if self._ngrams is not None:
            for ngram in ngrams:
                self._ngrams.add(context_of(ngram[:-1]), ngram[-1])

    def learn_answers(self, tree: TokenTree, answers: np.ndarray, right_rows: list[int]) -> None:
        """The K best tokens [R, K] after each row of a tree; rows whose path was right count most, likely ones more."""
        if self._recycled is None:
            return
        tokens = tree.tokens.tolist()
        contexts = pairs([tokens[parent] for parent in tree.parents.tolist()], tokens)
        contexts[0] = self.context & PAIR  # what the root follows is not in the tree
        positions = [self.position + depth for depth in tree.depths.tolist()]
        self._recycled.add(contexts, positions, answers, right_rows)
        self._recycled.forget(before=self.position)
