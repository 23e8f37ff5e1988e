"""Drafts from the n-grams that the lookahead window has yielded (arXiv 2402.02057, section 3.1)."""

from __future__ import annotations

from lp.drafting.base import Observation, SequenceStart
from lp.drafting.contexts import FOLLOWERS, ContextIndex, context_of
from lp.methods import Auto

# Lengths of the contexts by which n-grams are indexed.
LENGTHS = (1, 2, 3, 4)
# Most contexts that are kept.
CAPACITY = 1 << 20


class WindowNGrams(ContextIndex):
    """See DraftSource. A kind is a length of the match and a rank; the newest candidate ranks first."""

    name = "window"

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        by_rank = [0.3**rank for rank in range(FOLLOWERS)]
        return [(0.15 + 0.1 * length) * share for length in LENGTHS for share in by_rank]

    @classmethod
    def begin(cls, start: SequenceStart) -> WindowNGrams | None:
        settings = start.settings
        return cls(LENGTHS[: settings.ngram - 1], CAPACITY) if settings.window_drafts else None

    def learn(self, observation: Observation) -> None:
        for ngram in observation.ngrams:
            self.add(context_of(ngram[:-1]), ngram[-1])
