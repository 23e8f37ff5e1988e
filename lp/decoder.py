"""The interface of decoders: a decoder plans the token trees of one sequence and learns from the model's answers.

This is all that scheduling knows of a decoding method while a request runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from lp.tree import Accepted, Answers, CountDrafts, TokenTree

# The most rows of a step that a grammar adds: tokens that must follow.
MOST_FORCED = 48


class ProposedDrafts(NamedTuple):
    """A tree whose number of drafts is decided together with those of other sequences.

    num_rows: rows that the tree has in any case. odds: for each further draft that the decoder could add, the
    probability that it is accepted, in descending order. A draft's ancestors come before it.
    """

    num_rows: int
    odds: Sequence[float] = ()


class DraftedEnd(NamedTuple):
    """An end of a step for which drafts were made while it was computed: a row of its tree, and the token after it.

    place: of the rank that made them, among those that drafted ahead.
    """

    place: int
    row: int
    token: int


class Described(NamedTuple):
    """What a trace says of a decoder and of the tree that it planned last.

    sources: of each row: "root", "cell" for one of the window's, or the name of the source that proposed it. window:
    columns and levels; None without one. pool: n-grams in the pool; None without one. drafted_for: the ends for which
    others drafted ahead.
    """

    sources: list[str]
    window: tuple[int, int] | None = None
    pool: int | None = None
    drafted_for: Sequence[DraftedEnd] = ()


class RankedTokens(NamedTuple):
    """A whole text as its tokens, and its score."""

    tokens: Sequence[int]
    score: float


class DecodedTexts(NamedTuple):
    """The texts of a decoder that yields nothing before its end, best first.

    num_calls: hypotheses that the model was asked to continue.
    """

    texts: list[RankedTokens]
    num_calls: int


class Waiting(NamedTuple):
    """A sequence whose next tree is planned: its decoder, and the arguments of `Decoder.plan`."""

    decoder: Decoder
    tokens: Sequence[int]
    room: int
    wanted: int


class AheadOf(NamedTuple):
    """A step that is computed now, of which a rank without a part in it may draft ahead: the decoder that has planned
    its tree, and the sequence that it was planned for.
    """

    decoder: AheadDecoder
    tokens: Sequence[int]


class StepYield(NamedTuple):
    """What steps yield on average: the tokens of one, and the rows of its tree."""

    tokens: float
    rows: float


class AheadYields(NamedTuple):
    """What steps yield that others draft ahead of, and what all others do. longer: plain steps by which a step takes
    longer on average because a rank that drafts ahead of it is not ready.
    """

    ahead: StepYield
    others: StepYield
    longer: float


class Decoder(ABC):
    """Plans trees for one sequence and learns from what the model answers.

    tree: the one planned last. ends_at_once: whether nothing is output before the end; then `result` has the texts, and
    the accepted tokens are those with which all texts begin.
    """

    tree: TokenTree
    ends_at_once: ClassVar[bool] = False

    @property
    def prepare(self) -> Callable[[Sequence[Waiting], int], None] | None:
        """What readies the next trees of several sequences of a step together, for example in one forward of a draft
        model; None if there is nothing to ready. Its second argument is the number of sequences of the step.
        """
        return None

    @property
    def num_candidates(self) -> int:
        """How many of the best tokens it needs for each row of the tree; 0 is the target alone."""
        return 0

    @property
    def num_drafts(self) -> int:
        """The rows 1, 2, ... `num_drafts` of the tree are drafts that `keep` may drop."""
        return 0

    @property
    def expected(self) -> float:
        """Tokens that the tree is expected to yield, by what was learnt; 1 without an estimate."""
        return 1.0

    @property
    def most_rows(self) -> int:
        """The most rows that the next tree can have, if that may exceed the bounds of the method; else 0."""
        return 0

    @property
    def num_top(self) -> int | None:
        """How many of the likeliest tokens it needs for each row with their log-probabilities; None needs none."""
        return None

    @abstractmethod
    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """Plans the next tree, whose root is tokens[-1].

        room: positions that the model has after the root's. wanted: tokens that may still be emitted. The last of them
        needs no draft.
        """

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        """Begins to plan the next tree; `build_tree` ends it. load: sequences that the step has, this one included.

        By default the drafts are not a matter of choice: the proposal is the whole tree.
        """
        return ProposedDrafts(len(self.plan(tokens, room, wanted)))

    def build_tree(self, num_drafts: int) -> TokenTree:
        """Builds the proposed tree with the first drafts of the proposal."""
        assert not num_drafts
        return self.tree

    def keep(self, rows: Sequence[int]) -> TokenTree:
        """Drops drafts from the tree, and returns it.

        rows: the root and the drafts that stay, ascending, with all ancestors of each.
        """
        raise AssertionError("there is nothing to drop")

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:  # noqa: B027
        """Learns from tokens that this decoder has not planned: they follow the sequence `tokens`, or are sure to."""

    @abstractmethod
    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        """Verifies the tree against its answers and learns from them.

        tokens: the sequence that the tree was planned for, without the accepted tokens. Returns what was accepted, and
        what counts the drafts, as counting can wait until the next step has been started.
        """

    def ahead_of(self, tokens: Sequence[int]) -> AheadOf | None:
        """What may be drafted ahead of the step that is computed now; None if nothing may. tokens: as for `commit`."""
        return None

    def result(self) -> DecodedTexts | None:
        """The texts of a decoder with `ends_at_once`; None until they are known."""
        return None

    def describe(self) -> Described:
        """Describes the tree, before it is committed. For traces alone."""
        return Described(["root", *["draft"] * (len(self.tree) - 1)])

    @abstractmethod
    def fingerprint(self) -> int:
        """A checksum (31 bits) of all state. It must be equal on all ranks."""


class AheadDecoder(Decoder):
    """A decoder for which other ranks can draft while its step is computed.

    num_ahead: I, the integers in which a rank tells the others what it has found.
    """

    num_ahead: ClassVar[int]

    @property
    @abstractmethod
    def yields(self) -> AheadYields:
        """What steps yield, as far as is known."""

    @abstractmethod
    def draft_ahead(self, steps: Sequence[AheadOf], place: int, num_places: int) -> list[np.ndarray]:
        """Drafts ahead of steps, all of decoders of this kind. Returns int32 [I] for each.

        place: of this rank among the `num_places` that draft ahead, each of which looks elsewhere.
        """

    @abstractmethod
    def take_ahead(self, found: np.ndarray) -> None:
        """Takes what the ranks have found ahead of the step, before it is committed: int32 [ranks, I]."""
