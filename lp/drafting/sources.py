"""All sources of drafts: which there are, the numbers of their kinds, and those that one sequence uses."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.base import DraftSource, Lesson, Proposals, Root, SequenceStart
from lp.drafting.contexts import LONGEST, context_of
from lp.drafting.recycled import RecycledAnswers
from lp.drafting.shared import SharedNGrams
from lp.drafting.suffix import SuffixIndex
from lp.drafting.window_ngrams import WindowNGrams
from lp.methods import Auto

# A new source is one more file, and one more name here. Of equally likely candidates those of an earlier source win.
SOURCES: tuple[type[DraftSource], ...] = (SuffixIndex, SharedNGrams, WindowNGrams, RecycledAnswers)


class Kinds:
    """Numbers the kinds of all sources, whether in use or not: those of one source lie side by side.

    first: by a source's name, the number of its first kind. sources: by kind, the name of its source. priors: by kind,
    the probability to expect of it before any has been seen.
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
    """The sources that one sequence uses, and the root that they are asked about."""

    def __init__(self, kinds: Kinds, start: SequenceStart):
        self.root = Root(0, context_of([]))
        self._in_use = [source for kind in SOURCES if (source := kind.begin(start)) is not None]
        self._proposers = [(kinds.first[source.name], source.propose) for source in self._in_use]

    def move_to(self, tokens: Sequence[int]) -> None:
        """Makes the end of the sequence the root."""
        self.root = Root(len(tokens) - 1, context_of(tokens[-LONGEST:]))

    def propose(self, path: int, depth: int) -> Proposals:
        """Ranked candidates for what follows a path that ends `depth` tokens below the root."""
        position = self.root.position + depth
        return [
            (first + kind, candidates)
            for first, propose in self._proposers
            for kind, candidates in propose(path, position)
        ]

    def learn(self, lesson: Lesson) -> None:
        """Tells every source what a step has taught."""
        for source in self._in_use:
            source.learn(lesson)
