"""Shared n-grams: what followed the same last tokens in other requests of the same owner.

They are used only if the settings of the requests say so.
"""

from __future__ import annotations

from lp.drafting.base import Observation, Proposals, SequenceStart
from lp.drafting.contexts import ContextIndex, context_of
from lp.drafting.suffix import LENGTHS, text_kinds
from lp.methods import Auto

# Most contexts kept for one owner.
CAPACITY = 1 << 18


def make_shared_index() -> ContextIndex:
    """An empty index for one owner's requests."""
    return ContextIndex(LENGTHS, CAPACITY)


class SharedNGrams:
    """See DraftSource. It has the same kinds as the suffix index, but their probabilities are learnt separately."""

    name = "shared"

    def __init__(self, index: ContextIndex, start: SequenceStart):
        self._index = index
        self._index.add_text(context_of(start.prompt[:1]), start.prompt[1:])

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return text_kinds()

    @classmethod
    def begin(cls, start: SequenceStart) -> SharedNGrams | None:
        return None if start.shared is None else cls(start.shared, start)

    def propose(self, path: int, position: int) -> Proposals:
        return self._index.propose(path, position)

    def learn(self, observation: Observation) -> None:
        self._index.add_text(observation.root.context, observation.accepted)
