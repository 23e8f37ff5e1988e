"""A KV cache with memory of its own, in which a layer's tokens lie one behind the other: what the CPU reads fastest.

It is allocated ahead and written in place, and grows by moving. The memory of all these caches together has a bound.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache.cache import PAGE, KVCache, KVMemory, LayerShape, pages_of
from lp.platform.hardware import upload
from lp.platform.library import address


class ContiguousCache(KVCache):
    """See KVCache: a tensor [1, heads, capacity, head_dim] of keys and one of values for every layer.

    Keys and values of one shape are parts of one tensor, so that a path is kept by two operations for all of these.
    """

    def __init__(self, num_layers: int, capacity: int, memory: ContiguousMemory | None = None):
        """num_layers: that have keys and values of their own. capacity: tokens to allocate memory for. memory: bounds
        the memory; None is no bound.
        """
        super().__init__()
        self.num_layers = num_layers
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.capacity = pages_of(capacity) * PAGE
        self._memory = memory
        self._granted = 0  # tokens
        self._addresses: np.ndarray | None = None
        # [n, 1, heads, capacity, head_dim] of each shape: n layers' keys, then values. Empty while a layer is missing.
        self._stores: list[Tensor] = []

    @property
    def num_pages(self) -> int:
        return self._granted // PAGE

    def has_room(self, num_tokens: int) -> bool:
        return num_tokens <= self._granted and (bool(self._stores) or not self.num_layers)

    def reserve(self, num_rows: int) -> None:
        if self._memory is not None:
            self._memory.reserve([(self, num_rows)])
        else:
            self.make_room(self.length + num_rows)

    def make_room(self, num_tokens: int) -> None:
        """Allocates memory for so many tokens, and puts layers together once all of them are there."""
        grows = num_tokens > self._granted and self._grow(num_tokens)
        if grows or (self.is_written and not self._stores):
            self._move()

    def _grow(self, needed: int) -> bool:
        """Changes the capacity so that so many tokens fit; returns whether tensors must move for it."""
        before = self.capacity
        wanted = max(needed, 2 * before if needed > before else before)
        if self._memory is not None:
            self._granted = self._memory.grant(self, pages_of(needed), pages_of(wanted)) * PAGE
        else:
            self._granted = pages_of(wanted) * PAGE
        self.capacity = self._granted
        return self.capacity != before

    @torch.inference_mode()
    def shrink(self, num_pages: int) -> None:
        if self.num_pages > num_pages:
            self._granted = self.capacity = num_pages * PAGE
            self._move()

    def begin(self, shapes: Mapping[int, LayerShape], like: Tensor) -> None:
        """Allocates every layer's memory, with the number format and on the device of another tensor."""
        for layer, shape in shapes.items():
            self.keys[layer] = like.new_empty(1, shape.heads, 0, shape.key_dim)
            self.values[layer] = like.new_empty(1, shape.heads, 0, shape.value_dim)
        self._move()

    @torch.inference_mode()
    def _move(self) -> None:
        """Moves the cached tokens of all layers to new memory with the present capacity."""
        before, groups = (self.keys, self.values), self._groups()
        self._addresses, self.stores_at, self._stores = None, 0, []
        self.keys, self.values = dict[int, Tensor](), dict[int, Tensor]()
        for group in groups:
            like = before[group[0][0]][group[0][1]]
            store = like.new_empty(len(group), *like.shape[:2], self.capacity, like.shape[3])
            for (number, layer), part in zip(group, store, strict=True):
                part[:, :, : self.length] = before[number][layer][:, :, : self.length]
                (self.keys, self.values)[number][layer] = part
            self._stores.append(store)
        if not self.is_written:
            self._stores = []

    def _groups(self) -> list[list[tuple[int, int]]]:
        """Keys (0) and values (1) of the layers that are there, with the layer, by their shapes."""
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, store in enumerate((self.keys, self.values)):
            for layer, tensor in sorted(store.items()):
                groups.setdefault((tensor.shape[1], tensor.shape[3]), []).append((number, layer))
        return list(groups.values())

    def addresses(self) -> np.ndarray:
        """[2 * layers] int64 addresses of all layers' keys, then of their values. It holds until the cache grows."""
        if self._addresses is None:
            tensors = [store[layer] for store in (self.keys, self.values) for layer in sorted(store)]
            self._addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
            self.stores_at = address(self._addresses)
        return self._addresses

    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        end = self.length + key_states.shape[2]
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            if layer not in store:
                store[layer] = states.new_empty(*states.shape[:2], self.capacity, states.shape[3])
            store[layer][:, :, self.length : end] = states
        return self.seen_by(key_states.shape[2], layer)

    def seen_by(self, num_rows: int, layer: int) -> tuple[Tensor, Tensor]:
        end = self.length + num_rows
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def read_layer(self, layer: int, begin: int, end: int) -> Tensor:
        return torch.cat([part.flatten() for part in self._part(layer, begin, end)])

    def write_layer(self, layer: int, begin: int, end: int, numbers: Tensor) -> None:
        keys, values = self._part(layer, begin, end)
        keys.copy_(numbers[: keys.numel()].view(keys.shape))
        values.copy_(numbers[keys.numel() :].view(values.shape))

    def _part(self, layer: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys and values [heads, end - begin, head_dim]."""
        return self.keys[layer][0, :, begin:end], self.values[layer][0, :, begin:end]

    def _keep(self, rows: Sequence[int]) -> None:
        if rows and rows[-1] != len(rows) - 1:  # they ascend, so otherwise all are in their places
            self._gather(rows)
        self.length += len(rows)

    @torch.inference_mode()
    def _gather(self, rows: Sequence[int]) -> None:
        """Copies rows behind the cached tokens to where these end."""
        kept = slice(self.length, self.length + len(rows))
        if not (tensors := self._tensors()):  # a model that is only played has no keys and values
            return
        index = upload(np.asarray(rows, np.int64) + self.length, tensors[0].device)
        for tensor in tensors:
            tensor[..., kept, :] = tensor.index_select(tensor.dim() - 2, index)

    def _tensors(self) -> list[Tensor]:
        """All memory: one tensor of each shape, or before all layers are there one of each layer, in the same order."""
        if self._stores:
            return self._stores
        return [(self.keys, self.values)[number][layer] for group in self._groups() for number, layer in group]

    @torch.inference_mode()
    def export(self, begin: int, end: int) -> Tensor:
        return torch.cat([tensor[..., begin:end, :].flatten() for tensor in self._tensors()])

    def _write(self, numbers: Tensor, num_tokens: int, shapes: Mapping[int, LayerShape]) -> None:
        if not self.is_written:
            self.begin(shapes, numbers)
        begin = 0
        for tensor in self._tensors():
            part = tensor[..., self.length : self.length + num_tokens, :]
            part.copy_(numbers[begin : begin + part.numel()].view(part.shape))
            begin += part.numel()

    @torch.inference_mode()
    def _fork(self, length: int) -> ContiguousCache:
        memory = self._memory
        if memory is None:
            copy = ContiguousCache(self.num_layers, length)
            copy.reserve(length)
        else:
            copy = memory.open(length)
            memory.reserve([(self, 0), (copy, length)])
        copy.length = length
        copy.keys, copy.values = dict(self.keys), dict(self.values)
        copy._move()
        return copy

    def _release(self) -> None:
        self.keys, self.values = {}, {}
        self._stores, self._addresses = [], None
        self.length = self.stores_at = self._granted = self.capacity = 0

    @property
    def is_written(self) -> bool:
        """Whether every layer's memory is allocated, which happens when the layer is first written."""
        return len(self.keys) == self.num_layers

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """The shapes of all layers that a step has written."""
        return {
            layer: LayerShape(keys.shape[1], keys.shape[3], self.values[layer].shape[3])
            for layer, keys in sorted(self.keys.items())
        }

    @property
    def num_bytes(self) -> int:
        num_bytes = sum(t.numel() * t.element_size() for t in (*self.keys.values(), *self.values.values()))
        return num_bytes if self.states is None else num_bytes + self.states.num_bytes


class ContiguousMemory(KVMemory):
    """See KVMemory. It counts pages; each cache allocates its own memory."""

    def __init__(self, num_layers: int, num_pages: int = sys.maxsize):
        """num_layers: that are held here, and have keys and values of their own."""
        super().__init__(num_pages)
        self._num_layers = num_layers

    def open(self, capacity: int = 0) -> ContiguousCache:
        cache = ContiguousCache(self._num_layers, capacity, self)
        self._add(cache)
        return cache

    def grant(self, cache: ContiguousCache, needed: int, wanted: int) -> int:
        """The pages that a cache of the step at hand may have: as many as it wants if that leaves room for all that
        others hold and need, else as many as it needs.
        """
        others = [one for one in self._caches() if one is not cache]
        if wanted + sum(max(one.num_pages, self._needed.get(id(one), 0)) for one in others) <= self.num_pages:
            return wanted
        self._free_pages(needed, cache)
        return needed

    def _make_room(self, cache: KVCache, num_tokens: int) -> None:
        assert isinstance(cache, ContiguousCache)
        cache.make_room(num_tokens)
