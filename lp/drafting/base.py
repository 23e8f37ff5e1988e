"""What every source of drafts offers: kinds of candidates, proposals for what follows a path, and learning from steps.

    R rows of a tree, K candidates of each row

To add a source, write one file with a class that keeps `DraftSource`, and name it in sources.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lp.drafting.contexts import ContextIndex
from lp.methods import Auto
from lp.tree import TokenTree

# What may follow a path: lists of ranked candidates, each with the kind of its first; the next one has the next kind.
Proposals = list[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class SequenceStart:
    """What is known of a sequence when its sources are made.

    settings: those of decode=auto. prompt: token ids. is_sampled: whether tokens are drawn with noise. shared: n-grams
    of other requests of the same owner; None if this request shares none.
    """

    settings: Auto
    prompt: Sequence[int]
    is_sampled: bool
    shared: ContextIndex | None = None


class Root(NamedTuple):
    """The last token of a sequence, under which a step's tree hangs.

    position: its place in the sequence, from 0. context: the sequence's end, this token included (see contexts.py).
    """

    position: int
    context: int


class StepAnswers(NamedTuple):
    """What the model answered for each row of a step's tree.

    candidates: [R, K] best tokens, best first. right_rows: the rows whose path was right, the root first.
    """

    tree: TokenTree
    candidates: np.ndarray
    right_rows: Sequence[int]


@dataclass(frozen=True)
class Lesson:
    """What a step has taught.

    root: where its tree hung. accepted: the tokens that followed the root. ngrams: those that the lookahead window
    yielded. answers: None if the step asked for no candidates.
    """

    root: Root
    accepted: Sequence[int]
    ngrams: Sequence[tuple[int, ...]] = ()
    answers: StepAnswers | None = None


class DraftSource(Protocol):
    """A source of drafts for one sequence.

    A kind is how well a source's match fits and the rank of a candidate in it. What each kind is worth is learnt by
    history.py; a source only tells kinds apart.

    name: as statistics and metrics show the source.
    """

    name: str

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        """For each kind of this source, the probability to expect of it before any has been seen."""
        ...

    @classmethod
    def begin(cls, start: SequenceStart) -> DraftSource | None:
        """The source of a new sequence; None if the settings leave it out."""
        ...

    def propose(self, path: int, position: int) -> Proposals:
        """Ranked candidates for what follows a path, by kinds of this source (from 0).

        path: the context in which it ends (see contexts.py). position: of its last token, in the sequence.
        """
        ...

    def learn(self, lesson: Lesson) -> None:
        """Takes in what a step has taught."""
        ...
