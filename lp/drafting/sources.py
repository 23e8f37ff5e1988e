"""All draft sources: the list of them, the numbers of their kinds, and the sources that one sequence uses."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.answer_index import IndexedAnswers
from lp.drafting.base import DraftSource, Observation, Proposals, Root, SequenceStart
from lp.drafting.contexts import LONGEST, context_of, extend
from lp.drafting.recycled import RecycledAnswers
from lp.drafting.shared import SharedDrafts
from lp.drafting.suffix import SuffixIndex
from lp.drafting.window_ngrams import WindowNGrams
from lp.methods import Auto

# To add a source, write one more file and add its class here. Of equally likely candidates, those of the source that
# stands first here are preferred.
SOURCES: tuple[type[DraftSource], ...] = (SuffixIndex, SharedDrafts, WindowNGrams, RecycledAnswers, IndexedAnswers)


class Kinds:
    """Numbers the kinds of all sources, whether in use or not. The kinds of one source are consecutive.

    first: the number of each source's first kind, by the source's name. sources: the source's name for each kind.
    priors: for each kind, the probability assumed for its candidates before any has been seen.
    """

    def __init__(self, settings: Auto):
        self.first: dict[str, int] = {}
        self.sources: list[str] = []
        self.priors: list[float] = []
        for source in SOURCES:
            priors = source.kinds(settings)
            self.first[source.name] = len(self.priors)
            self.sources += [source.name] * len(priors)
            self.priors += priors


class Sources:
    """The sources that one sequence uses, and the present root of its tree."""

    def __init__(self, kinds: Kinds, start: SequenceStart):
        self.root = Root(0, context_of([]))
        self._in_use = [source for kind in SOURCES if (source := kind.begin(start)) is not None]
        self._proposers = [(kinds.first[source.name], source.propose) for source in self._in_use]

    def move_to(self, tokens: Sequence[int]) -> None:
        """Makes the end of the sequence the root."""
        self.root = Root(len(tokens) - 1, context_of(tokens[-LONGEST:]))

    def go_on(self, tokens: Sequence[int]) -> None:
        """Moves the root along tokens that follow it."""
        context = self.root.context
        for token in tokens:
            context = extend(context, token)
        self.root = Root(self.root.position + len(tokens), context)

    def propose(self, path: int, depth: int) -> Proposals:
        """Proposals of all sources for what follows a path that ends `depth` tokens below the root."""
        position = self.root.position + depth
        proposals: Proposals = []
        for first, propose in self._proposers:
            for kind, candidates in propose(path, position):
                proposals.append((first + kind, candidates))
        return proposals

    def learn(self, observation: Observation) -> None:
        """Lets every source learn from one or more steps."""
        for source in self._in_use:
            source.learn(observation)
