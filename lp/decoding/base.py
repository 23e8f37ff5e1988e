"""The interface of decoders, which plan token trees and learn from what the model answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lp.tree import Accepted, Answers, CountDrafts, TokenTree


class Offer(NamedTuple):
    """A tree whose number of drafts is decided together with those of other sequences.

    num_rows: rows that the tree has in any case. odds: for each further draft that the decoder could add, the
    probability that it is accepted, in descending order. A draft's ancestors come before it.
    """

    num_rows: int
    odds: Sequence[float] = ()


class Described(NamedTuple):
    """What a trace says of a decoder and of the tree that it planned last.

    sources: of each row: "root", "cell" for one of the window's, or the name of the source that proposed it. window:
    columns and levels; None without one. pool: n-grams in the pool; None without one.
    """

    sources: list[str]
    window: tuple[int, int] | None = None
    pool: int | None = None


class Decoder(Protocol):
    """Plans trees for one sequence and learns from what the model answers.

    num_candidates: how many of the best tokens it needs for each row of the tree planned last; 0 is the target alone.
    is_shared: whether ranks share the tree planned last; False lets one of them compute it while the others rest.
    num_drafts: of the tree planned last, the rows 1, 2, ... `num_drafts` are drafts that `keep` may drop.
    expected: tokens that the tree planned last is expected to yield, by what the decoder has learnt; 1 if it does not
    estimate that.
    """

    @property
    def num_candidates(self) -> int: ...

    @property
    def is_shared(self) -> bool: ...

    @property
    def num_drafts(self) -> int: ...

    @property
    def expected(self) -> float: ...

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """Plans the next tree, whose root is tokens[-1].

        room: positions that the model has after the root's. wanted: tokens that may still be emitted. The last of them
        needs no draft.
        """
        ...

    def offer(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Offer:
        """Begins to plan the next tree; `take` ends it. load: sequences that the step has, this one included.

        The others: see `plan`.
        """
        ...

    def take(self, num_drafts: int) -> TokenTree:
        """Plans the offered tree with the first drafts of the offer."""
        ...

    def keep(self, rows: Sequence[int]) -> TokenTree:
        """Drops drafts from the tree planned last. Returns it without them.

        rows: the root and the drafts that stay, ascending, with all ancestors of each.
        """
        ...

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        """Learns from tokens that this decoder has not planned: they follow the sequence `tokens`, or are sure to."""
        ...

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        """Verifies the tree planned last against its answers and learns from them.

        tokens: the same sequence that the tree was planned for, without the accepted tokens. Returns what was accepted,
        and what counts the drafts, as counting can wait until the next step has been started.
        """
        ...

    def described(self) -> Described:
        """Describes the tree planned last, before it is committed. For traces alone."""
        ...

    def fingerprint(self) -> int:
        """A checksum (31 bits) of all state. It must be equal on all ranks."""
        ...


class WholeTrees(ABC):
    """A base for decoders whose drafts are not a matter of choice: they offer the tree that they plan."""

    tree: TokenTree
    expected = 1.0

    @property
    def num_drafts(self) -> int:
        return 0

    def keep(self, rows: Sequence[int]) -> TokenTree:
        raise AssertionError("there is nothing to drop")

    def described(self) -> Described:
        return Described(["root", *["draft"] * (len(self.tree) - 1)])

    @abstractmethod
    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """See Decoder. It keeps the tree."""

    def offer(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Offer:
        return Offer(len(self.plan(tokens, room, wanted)))

    def take(self, num_drafts: int) -> TokenTree:
        assert not num_drafts
        return self.tree
