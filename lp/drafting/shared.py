"""What requests of the same owner share: what followed the same last tokens, and what the model answered after them.

It is used only if the settings of the requests say so.
"""

from __future__ import annotations

from lp.drafting.answers import NewestAnswers, priors
from lp.drafting.base import Observation, Proposals, SequenceStart, SharedKnowledge
from lp.drafting.contexts import ContextIndex, context_of
from lp.drafting.recycled import answered_pairs
from lp.drafting.suffix import LENGTHS, text_kinds
from lp.methods import Auto

# Most contexts kept for one owner.
CAPACITY = 1 << 18
# The probability assumed for the best of shared answers before any has been seen.
FIRST = 0.3


def make_shared() -> SharedKnowledge:
    """Nothing yet, for one owner's requests."""
    return SharedKnowledge(ContextIndex(LENGTHS, CAPACITY), NewestAnswers())


class SharedDrafts:
    """See DraftSource. It has the kinds of the suffix index, learnt separately, and one for each rank of an answer."""

    name = "shared"

    def __init__(self, shared: SharedKnowledge, start: SequenceStart):
        self._shared = shared
        self._num_candidates = start.settings.candidates
        self._first_answer = len(text_kinds())
        self._shared.ngrams.add_text(context_of(start.prompt[:1]), start.prompt[1:])

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return [*text_kinds(), *priors(FIRST, settings.candidates)]

    @classmethod
    def begin(cls, start: SequenceStart) -> SharedDrafts | None:
        return None if start.shared is None else cls(start.shared, start)

    def propose(self, path: int, position: int) -> Proposals:
        # Copies, as other requests may add followers before this one's step is over.
        found: Proposals = [(kind, tuple(followers)) for kind, followers in self._shared.ngrams.propose(path, position)]
        if best := self._shared.answers.find(path):  # other requests may ask for more candidates
            found.append((self._first_answer, best[: self._num_candidates]))
        return found

    def learn(self, observation: Observation) -> None:
        self._shared.ngrams.add_text(observation.root.context, observation.accepted)
        if observation.answers is not None:
            _, _, right_rows = observation.answers
            self._shared.answers.add(*answered_pairs(observation.root, observation.answers), right_rows)
