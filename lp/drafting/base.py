"""The interface of draft sources: they propose candidates for what follows a path, and learn from every step.

    R rows of a tree, K candidates of each row

To add a source, write one file with a class that implements `DraftSource`, and name the class in sources.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lp.drafting.answers import AnswerIndex, NewestAnswers
from lp.drafting.contexts import ContextIndex, Proposals
from lp.drafting.corpus.file import Corpus
from lp.methods import Auto
from lp.tree import TokenTree


@dataclass(frozen=True)
class SharedKnowledge:
    """What requests of one owner share: the n-grams of their texts, and the model's answers to them."""

    ngrams: ContextIndex
    answers: NewestAnswers


@dataclass(frozen=True)
class SequenceStart:
    """What is known of a sequence when its sources are made.

    settings: the request's settings of decode=auto. prompt: token ids. is_sampled: whether tokens are sampled rather
    than decoded greedily. shared: what other requests of the same owner left; None if this request shares nothing.
    index: the model's answers from a file; None if there is none. corpus: texts from a file; None if there is none.
    """

    settings: Auto
    prompt: Sequence[int]
    is_sampled: bool
    shared: SharedKnowledge | None = None
    index: AnswerIndex | None = None
    corpus: Corpus | None = None


class Root(NamedTuple):
    """The last token of a sequence, which is the root of a step's tree.

    position: its position in the sequence, from 0. context: the last tokens of the sequence, with this one at the end
    (see contexts.py).
    """

    position: int
    context: int


class StepAnswers(NamedTuple):
    """What the model answered for each row of a step's tree.

    candidates: [R, K] best tokens, best first. right_rows: the rows whose path was accepted, the root first.
    """

    tree: TokenTree
    candidates: np.ndarray
    right_rows: Sequence[int]


@dataclass(frozen=True)
class Observation:
    """What the sources learn from: one speculative step, or several plain steps in a row.

    root: the root before these steps. accepted: the tokens that followed it. ngrams: n-grams that the lookahead window
    yielded. answers: None if no candidates were asked for. drafted_by: of each accepted draft, the name of its source;
    None unless there were drafts.
    """

    root: Root
    accepted: Sequence[int]
    ngrams: Sequence[tuple[int, ...]] = ()
    answers: StepAnswers | None = None
    drafted_by: Sequence[str] | None = None


class DraftSource(Protocol):
    """A source of drafts for one sequence.

    A source sorts its candidates into kinds, for example by the length of the match and the candidate's rank.
    history.py learns how often the candidates of each kind are right.

    name: the source's name in statistics and metrics.
    """

    name: str

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        """For each kind of this source, the probability assumed for its candidates before any has been seen."""
        ...

    @classmethod
    def begin(cls, start: SequenceStart) -> DraftSource | None:
        """Makes the source for a new sequence; None if the settings leave it out."""
        ...

    def propose(self, path: int, position: int) -> Proposals:
        """Proposes tokens that may follow a path. The kinds are this source's own, counted from 0.

        path: the context in which the path ends (see contexts.py). position: position of its last token in the
        sequence.
        """
        ...

    def learn(self, observation: Observation) -> None:
        """Learns from one or more steps."""
        ...
