"""The suffix index: what followed the same last tokens earlier in the sequence. The longest match counts."""

from __future__ import annotations

from lp.drafting.base import Observation, SequenceStart
from lp.drafting.contexts import FOLLOWERS, ContextIndex, context_of
from lp.methods import Auto

# Lengths of the contexts by which a text is indexed.
LENGTHS = (1, 2, 3, 4, 6, 8)
# Most contexts that are kept.
CAPACITY = 1 << 20


def text_kinds() -> list[float]:
    """Prior probabilities by length of the match and rank: longer matches and better ranks are likelier to be right."""
    by_rank = [0.3**rank for rank in range(FOLLOWERS)]
    return [min(0.9, 0.3 + 0.1 * length) * share for length in LENGTHS for share in by_rank]


class SuffixIndex(ContextIndex):
    """See DraftSource. A kind is a length of the match and a rank; the newest candidate ranks first."""

    name = "suffix"

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return text_kinds()

    @classmethod
    def begin(cls, start: SequenceStart) -> SuffixIndex | None:
        if not start.settings.suffix_drafts:
            return None
        index = cls(LENGTHS, CAPACITY)
        index.add_text(context_of(start.prompt[:1]), start.prompt[1:])
        return index

    def learn(self, observation: Observation) -> None:
        self.add_text(observation.root.context, observation.accepted)
