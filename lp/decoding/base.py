"""The interface of decoders, which plan token trees and learn from what the model answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lp.tree import TokenTree
from lp.verification import Accepted, Answers, CountDrafts


class Decoder(Protocol):
    """Plans trees for one sequence and learns from what the model answers.

    num_candidates: how many of the best tokens it needs for each row of the tree planned last; 0 is the target alone.
    is_shared: whether ranks share the tree planned last; False lets one of them compute it while the others rest.
    """

    @property
    def num_candidates(self) -> int: ...

    @property
    def is_shared(self) -> bool: ...

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """Plans the next tree, whose root is tokens[-1].

        room: positions that the model has after the root's. wanted: tokens that may still be emitted. The last of them
        needs no draft.
        """
        ...

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        """Verifies the tree planned last against its answers and learns from them.

        tokens: the same sequence that the tree was planned for, without the accepted tokens. Returns what was accepted,
        and what counts the drafts, as counting can wait until the next step has been started.
        """
        ...

    def fingerprint(self) -> int:
        """A checksum (31 bits) of all state. It must be equal on all ranks."""
        ...
