"""A static KV cache: allocated ahead, written in place, with room behind the sequence for a step's rows.

Rows of a step are written after the cached prefix. Afterwards those that became part of the sequence are kept, in
order, and the rest is overwritten by the next step. Knows nothing of why rows are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache

BLOCK = 256
"""Capacities are multiples of this, so that growing is rare."""


class KVCache(Cache):
    """Keys and values of one sequence, by layer [1, heads, capacity, head_dim]."""

    def __init__(self, num_layers: int, capacity: int):
        super().__init__(layers=[])
        self.num_layers = num_layers
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.capacity = -(-capacity // BLOCK) * BLOCK
        self.length = 0
        """Tokens of the sequence that are cached; rows of the step at hand come after them."""

    @torch.inference_mode()
    def reserve(self, num_rows: int) -> None:
        """Makes room for the rows of a step."""
        if self.length + num_rows <= self.capacity:
            return
        self.capacity = -(-max(self.length + num_rows, 2 * self.capacity) // BLOCK) * BLOCK
        for store in (self.keys, self.values):
            for layer, old in store.items():
                store[layer] = self._allocate(old)
                store[layer][:, :, : self.length] = old[:, :, : self.length]

    def _allocate(self, like: Tensor) -> Tensor:
        return like.new_empty(like.shape[0], like.shape[1], self.capacity, like.shape[3])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Writes the step's rows of a layer; returns prefix and rows [1, heads, length + R, head_dim], not copied."""
        end = self.length + key_states.shape[2]
        views = []
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx not in store:
                store[layer_idx] = self._allocate(states)
            store[layer_idx][:, :, self.length : end] = states
            views.append(store[layer_idx][:, :, :end])
        return views[0], views[1]

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Appends rows of the last step, ascending, to the cached sequence."""
        if list(rows) != list(range(len(rows))):
            kept = slice(self.length, self.length + len(rows))
            tensors = [*self.keys.values(), *self.values.values()]
            index = torch.as_tensor(rows, device=tensors[0].device) + self.length
            for tensor in tensors:
                tensor[:, :, kept] = tensor.index_select(2, index)
        self.length += len(rows)

    @property
    def is_written(self) -> bool:
        """Whether all layers have their place: they get it when they are first written."""
        return len(self.keys) == self.num_layers

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys.values(), *self.values.values()))

    # What transformers' models may ask of a cache; positions and masks are given to them, so little of it matters.

    @property
    def is_compileable(self) -> bool:
        return False

    def __len__(self) -> int:
        return self.num_layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0
