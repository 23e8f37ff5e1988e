"""What every decoder is: it plans a token tree and learns from what the model answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lp.tree import TokenTree
from lp.verification import Accepted, Answers, Drafted


class Decoder(Protocol):
    """Plans trees for one sequence and learns from what the model answers.

    num_candidates: best tokens that it wants to know for each row of the tree planned last; 0 is the target alone.
    """

    @property
    def num_candidates(self) -> int: ...

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """The next tree under the root tokens[-1].

        room: positions that the model has after the root's. wanted: tokens that may still be emitted; the last of them
        needs no draft.
        """
        ...

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, Drafted]:
        """Verifies the tree planned last by its answers; `tokens` are still those it was planned for."""
        ...

    def fingerprint(self) -> int:
        """A checksum (31 bits) of all state: equal on all ranks of lookahead parallelism."""
        ...
