"""A FastForward for the CPU made of a function of tensors, which it gives a tree's tensors and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lp.model.attention import MaskKey
from lp.model.causal import CausalModel, SequenceRows
from lp.model.kv.contiguous import ContiguousCache
from lp.model.kv_cache import KVCache
from lp.tree import TokenTree


@dataclass(frozen=True)
class HostStep:
    """What a step gives to a forward on the CPU.

    tokens, positions: [R]. length: the prefix's length. masks: as TreeStep.mask makes them. keys, values: one tensor
    [1, H, capacity, D] for each layer, into which the rows are written behind the prefix.
    """

    tokens: Tensor
    positions: Tensor
    length: int
    masks: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


class TensorForward(Protocol):
    """A forward that takes tensors. mask_keys: the masks that it must be given.

    R rows, V vocabulary
    """

    mask_keys: list[MaskKey]

    def __call__(self, step: HostStep, num_logits: int) -> Tensor:
        """Returns float32 logits [num_logits, V] of the last rows."""
        ...


class OnTensors:
    """See FastForward."""

    begins_caches = False
    owns_weights = False
    is_invariant = False

    def __init__(self, model: CausalModel, inner: TensorForward):
        self.inner = inner
        self._to_device = model.to_device

    @torch.inference_mode()
    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward. The sequences are run one after the other."""
        return torch.cat([self._run(*rows) for rows in given])

    def _run(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        assert isinstance(cache, ContiguousCache), "only a CPU has a forward that is compiled ahead of time"
        step, tokens = self._to_device(tree, cache.length)
        masks = [step.mask(*key) for key in self.inner.mask_keys]
        stores = list(cache.keys.values()), list(cache.values.values())
        return self.inner(HostStep(tokens, step.positions, cache.length, masks, *stores), num_logits)
