"""A static KV cache: allocated ahead and written in place, with room behind the sequence for a step's rows.

A step writes its rows behind the cached prefix. The rows that became part of the sequence are then kept, in order, and
the next step overwrites the others. Knows nothing of why a row is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from lp.hardware import upload

# Capacities are multiples of this, so that a cache seldom has to grow.
BLOCK = 256


class KVCache(Cache):
    """Keys and values of one sequence: a tensor [1, heads, capacity, head_dim] of each for every layer.

    Where all layers are alike, these are parts of one tensor, so that a path is kept by two operations for all layers.
    """

    def __init__(self, num_layers: int, capacity: int):
        super().__init__(layers=[])
        self.num_layers = num_layers
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.capacity = -(-capacity // BLOCK) * BLOCK
        # The number of cached tokens of the sequence; the current step's rows lie behind them.
        self.length = 0
        self._addresses: np.ndarray | None = None
        # [2, layers, 1, heads, capacity, head_dim] keys, then values; None while they are not in one tensor.
        self._together: Tensor | None = None

    @torch.inference_mode()
    def reserve(self, num_rows: int) -> None:
        """Makes room for a step of `num_rows` rows."""
        grows = self.length + num_rows > self.capacity
        if grows:
            self.capacity = -(-max(self.length + num_rows, 2 * self.capacity) // BLOCK) * BLOCK
        if grows or (self._together is None and self._are_alike()):
            self._move()

    def allocate(self, shapes: Sequence[tuple[int, int]], dtype: torch.dtype) -> None:
        """Allocates every layer's memory on the CPU. shapes: heads and head dimension of each layer."""
        for layer, (heads, head_dim) in enumerate(shapes):
            for store in (self.keys, self.values):
                store[layer] = torch.empty(1, heads, 0, head_dim, dtype=dtype)
        self._move()

    def _are_alike(self) -> bool:
        """Whether all layers are there and have the same shape."""
        return self.is_written and len({tensor.shape for tensor in (*self.keys.values(), *self.values.values())}) == 1

    def _move(self) -> None:
        """Moves the cached tokens of all layers to new memory with the present capacity."""
        before = self.keys, self.values
        self._addresses = None
        if self._are_alike():
            first = self.keys[0]
            self._together = first.new_empty(2, self.num_layers, *self._shape(first))
            self.keys, self.values = (dict(enumerate(part)) for part in self._together)
        else:
            self.keys, self.values = (
                {layer: tensor.new_empty(self._shape(tensor)) for layer, tensor in store.items()} for store in before
            )
        for old, new in zip(before, (self.keys, self.values), strict=True):
            for layer, tensor in old.items():
                new[layer][:, :, : self.length] = tensor[:, :, : self.length]

    def addresses(self) -> np.ndarray:
        """[2 * layers] int64 addresses of all layers' keys, then of their values. It holds until the cache grows."""
        if self._addresses is None:
            tensors = [store[layer] for store in (self.keys, self.values) for layer in range(self.num_layers)]
            self._addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
        return self._addresses

    def _shape(self, like: Tensor) -> tuple[int, ...]:
        """The shape of a layer's keys or values with the present capacity."""
        return *like.shape[:2], self.capacity, like.shape[3]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Writes a layer's R rows; returns views of its keys and values [1, heads, length + R, head_dim]."""
        end = self.length + key_states.shape[2]
        views = []
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx not in store:
                store[layer_idx] = states.new_empty(self._shape(states))
            store[layer_idx][:, :, self.length : end] = states
            views.append(store[layer_idx][:, :, :end])
        return views[0], views[1]

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Appends rows of the last step, given in ascending order, to the cached sequence."""
        if list(rows) != list(range(len(rows))):
            kept = slice(self.length, self.length + len(rows))
            each = (*self.keys.values(), *self.values.values())
            tensors = each if self._together is None else (self._together,)
            index = upload(np.asarray(rows, np.int64) + self.length, tensors[0].device)
            for tensor in tensors:
                tensor[..., kept, :] = tensor.index_select(tensor.dim() - 2, index)
        self.length += len(rows)

    @property
    def is_written(self) -> bool:
        """Whether every layer's memory is allocated, which happens when the layer is first written."""
        return len(self.keys) == self.num_layers

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys.values(), *self.values.values()))

    # transformers' models may call the rest. Little of it matters, as positions and masks are passed to them.

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
