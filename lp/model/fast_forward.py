"""What a model's forward is given, and what faster versions of it offer.

R rows of a tree, L rows of all trees whose logits are wanted, V vocabulary
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lp.kv_cache.cache import KVCache, LayerShape
from lp.tree import TokenTree


class ForwardFailed(RuntimeError):
    """A fast forward cannot run, though the model's own can. The message says why, on one line."""


class SequenceRows(NamedTuple):
    """The rows of one sequence in a forward.

    tree: run after the prefix that is cached, and written to the cache, where memory is reserved. num_logits: for how
    many of the last rows logits are wanted; 0 for rows that only fill the cache. only_best: whether of each row's
    logits the highest alone must be right; the others may be approximate, and are lower.
    """

    tree: TokenTree
    cache: KVCache
    num_logits: int
    only_best: bool = False


# Rows of a prompt that a forward is given at a time, unless it says otherwise: they bound the memory for attention.
PREFILL_CHUNK = 512
# Called before an attention, with the index of the layer whose keys and values it reads.
BeforeAttention = Callable[[int], None]
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


class FastForward(ABC):
    """A faster version of a model's forward, for the rows of one or more sequences. What is optional has a default.

    owns_weights: whether it has copies of all weights that it needs. is_invariant: whether a row's logits are the same
    to the last bit whatever rows are in the step and however much of its path is cached. gives_hidden, runs_by_layer,
    chooses_tokens: whether it has `with_hidden`, `run_by_layer` and `compute`. prefill_chunk: rows of a prompt that it
    should be given at a time.
    """

    owns_weights: bool = False
    is_invariant: bool = False
    gives_hidden: bool = False
    runs_by_layer: bool = False
    chooses_tokens: bool = False
    prefill_chunk: int = PREFILL_CHUNK

    @property
    def cache_shapes(self) -> Mapping[int, LayerShape] | None:
        """What it caches in each layer; None is what the model's own forward does."""
        return None

    @abstractmethod
    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """Runs the rows of some sequences, no two of the same sequence.

        Returns float32 logits [L, V], those of the first sequence first. Raises ForwardFailed before it writes to a
        prefix.
        """

    def with_hidden(self, given: Sequence[SequenceRows], incoming: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The logits, and the hidden states that the output embedding reads, [L, D] in any format. incoming: see
        `run_stage`.
        """
        raise NotImplementedError

    def run_stage(self, given: Sequence[SequenceRows], incoming: Tensor | None) -> Tensor:
        """Runs the layers of a stage of a pipeline.

        incoming: float32 [R, D], what the stage before has returned for the same rows; None in the first stage.
        Returns logits as a forward does in the last stage, and the rows' hidden states [R, D] in all others.
        """
        raise NotImplementedError

    def run_by_layer(self, rows: SequenceRows, before_attention: BeforeAttention) -> None:
        """Runs rows without logits. It stops in each layer, once the keys and values of the rows are in the cache."""
        raise NotImplementedError

    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        """Captures what chooses tokens on the device without the host's launching it, by names of its kinds. Nothing
        happens if that was done, or cannot be.
        """
        raise NotImplementedError

    def compute(self, given: Sequence[SequenceRows], how: Sequence[Choosing | None]) -> Computed | None:
        """Runs the rows of some sequences as a forward does, ready to choose the tokens of each one's last rows.

        how: for each sequence; None for one whose tokens are chosen otherwise, or not at all. Returns None, with
        nothing done, if no tokens are to be chosen, or by a kind that has not been captured.
        """
        raise NotImplementedError
