"""What a model's forward is given, and what faster versions of it offer.

R rows of a tree, L rows of all trees whose logits are wanted, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.tree import TokenTree


class ForwardFailed(RuntimeError):
    """A fast forward cannot run, though the model's own can. The message says why, on one line."""


class SequenceRows(NamedTuple):
    """The rows of one sequence in a forward.

    tree: run after the prefix that is cached, and written to the cache, which has room for them. num_logits: for how
    many of the last rows logits are wanted; 0 for rows that only fill the cache.
    """

    tree: TokenTree
    cache: KVCache
    num_logits: int


class FastForward(Protocol):
    """A faster version of a model's forward, for the rows of one or more sequences.

    begins_caches: whether it can be given a cache that nothing was written to. owns_weights: whether it has copies of
    all weights that it needs. is_invariant: whether a row's logits are the same to the last bit whatever rows are
    beside it and however much of its path is cached.
    """

    begins_caches: bool
    owns_weights: bool
    is_invariant: bool

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """Runs the rows of some sequences, no two of the same sequence.

        Returns float32 logits [L, V], those of the first sequence first. Raises ForwardFailed before it writes to a
        prefix.
        """
        ...


# Called before an attention, with the index of the layer whose keys and values it reads.
BeforeAttention = Callable[[int], None]


@runtime_checkable
class RunsByLayer(Protocol):
    """A fast forward that can stop in each layer, once the keys and values of its rows are in the cache."""

    def run_by_layer(self, rows: SequenceRows, before_attention: BeforeAttention) -> None:
        """Runs rows whose logits nobody wants."""
        ...


# Chooses tokens: takes float32 logits [R, V] and int64 [R, C], how each row's is chosen; returns int64 [R, K].
Choose = Callable[[Tensor, Tensor], Tensor]


class Choosing(NamedTuple):
    """How the tokens of a sequence's last N rows are chosen, those whose logits are wanted.

    kind: of what was captured. choices: int64 [N, C].
    """

    kind: str
    choices: np.ndarray


@dataclass(frozen=True)
class Computed:
    """A step that was run, whose tokens have not been chosen yet.

    logits: float32 [L or more, V], which may be changed before tokens are chosen by them. rows: of the logits, those of
    each sequence that are wanted. choose: launches a kind's choosing; returns its tokens, int64 [rows of the logits,
    K], of which those mean something that the step gave to the kind. is_lasting: whether the next step leaves the
    logits alone.
    """

    logits: Tensor
    rows: list[slice]
    choose: Callable[[str], Tensor]
    is_lasting: bool


@runtime_checkable
class ChoosesTokens(Protocol):
    """A fast forward that can choose tokens on the device without the host's launching it."""

    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        """Captures what chooses tokens, by names of its kinds. Nothing happens if that was done."""
        ...

    def compute(self, given: Sequence[SequenceRows], how: Sequence[Choosing | None]) -> Computed | None:
        """Runs the rows of some sequences as a forward does, ready to choose the tokens of each one's last rows.

        how: for each sequence; None for one whose tokens are chosen otherwise, or not at all. Returns None, with
        nothing done, if no tokens are to be chosen, or by a kind that has not been captured.
        """
        ...
