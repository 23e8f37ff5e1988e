"""All draft sources: the list of them, the numbers of their kinds, and the sources that one sequence uses."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.answer_index import IndexedAnswers
from lp.drafting.base import DraftSource, Observation, Proposals, Root, SequenceStart
from lp.drafting.contexts import LONGEST, context_of, extend
from lp.drafting.corpus.source import CorpusDrafts
from lp.drafting.recycled import RecycledAnswers
from lp.drafting.shared import SharedDrafts
from lp.drafting.suffix import SuffixIndex
from lp.drafting.window_ngrams import WindowNGrams
from lp.methods import Auto

# To add a source, write one more file and add its class here. Of equally likely candidates, those of the source that
# stands first here are preferred.
SOURCES: tuple[type[DraftSource], ...] = (
    SuffixIndex, SharedDrafts, WindowNGrams, RecycledAnswers, IndexedAnswers, CorpusDrafts,
)  # fmt: skip


# The share of its prior probability that a kind has where another source is surer of another candidate.
RIVALLED = 0.5


class Kinds:
    """Numbers the kinds of all sources, whether in use or not. The kinds of one source are consecutive.

    Sources often agree, and where they do not, the surer one is mostly right. So each kind is there twice: a list of
    candidates has its own kinds if no other list for the same path is surer of its best candidate, and else its
    rivalled kinds, whose numbers are larger by `num_own` (see `ranked`).

    first: the number of each source's first kind, by the source's name. sources: the source's name for each kind.
    priors: for each kind, the probability assumed for its candidates before any has been seen. num_own: kinds that are
    not rivalled.
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
        self.num_own = len(self.priors)
        self.sources *= 2
        self.priors += [RIVALLED * prior for prior in self.priors]


def ranked(proposals: Proposals, probabilities: Sequence[float], num_own: int) -> Proposals:
    """The proposals for one path, with rivalled kinds for all lists but the one that is surest of its best candidate.

    probabilities: that of each kind. num_own: see Kinds.
    """
    if len(proposals) < 2:
        return proposals
    surest = max(range(len(proposals)), key=lambda at: probabilities[proposals[at][0]])
    return [(first + num_own * (at != surest), candidates) for at, (first, candidates) in enumerate(proposals)]


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
