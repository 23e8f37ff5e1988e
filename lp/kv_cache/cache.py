"""The interface of a KV cache: the keys and values of one sequence, followed by those of the rows of a step.

A step writes its rows behind the cached tokens. The rows that became part of the sequence are then kept, in order, and
the next step overwrites the others. Where keys and values lie is in arena.py and contiguous.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from transformers import Cache

from lp.kv_cache.recurrent import RecurrentStates

# Tokens of a page, in which memory is counted. FlashAttention-2 takes pages of multiples of 256 tokens.
PAGE = 256


def pages_of(num_tokens: int) -> int:
    """The number of pages that so many tokens need."""
    return -(-num_tokens // PAGE)


@dataclass(frozen=True)
class LayerShape:
    """A layer's heads, and the dimensions of a key and of a value: 0 where a value is the first numbers of its key."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """The numbers of one token."""
        return self.heads * (self.key_dim + self.value_dim)


class KVCache(ABC):
    """Keys and values of one sequence in all layers.

    length: the number of cached tokens; the rows of the step at hand lie behind them. states: of recurrent layers; None
    in a model that has none. was_evicted: whether the memory was given to another sequence, since `take_eviction` was
    last called. stores_at: where the library finds the addresses of all layers' memory; 0 while they are not known.
    """

    def __init__(self) -> None:
        self.length = self.stores_at = 0
        self.states: RecurrentStates | None = None
        self.was_evicted = False

    @property
    @abstractmethod
    def num_pages(self) -> int:
        """The number of pages that are held for this sequence."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The memory that is held for this sequence."""

    @property
    @abstractmethod
    def is_written(self) -> bool:
        """Whether the memory of every layer is there."""

    @abstractmethod
    def has_room(self, num_tokens: int) -> bool:
        """Whether a step may write up to so many tokens without anything being done before it."""

    @abstractmethod
    def reserve(self, num_rows: int) -> None:
        """Reserves memory for a step of `num_rows` rows, which must be done before each step.

        Sequences that were used least recently are evicted for it. Raises OutOfRoom if that is not enough.
        """

    @abstractmethod
    def shrink(self, num_pages: int) -> None:
        """Gives back what is held beyond so many pages, which must be enough for the cached tokens."""

    @abstractmethod
    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Writes a layer's R rows [1, heads, R, head_dim], for which memory must be reserved.

        Returns its keys and values [1, heads, length + R, head_dim], which are to be read only.
        """

    @abstractmethod
    def seen_by(self, num_rows: int, layer: int) -> tuple[Tensor, Tensor]:
        """What `update` has returned for a layer's rows in this step."""

    def keep(self, rows: Sequence[int]) -> None:
        """Appends rows of the last step, a path in ascending order, to the cached sequence.

        With recurrent layers, it may append fewer of them than are given: see RecurrentStates.
        """
        if self.states is not None:
            rows = rows[: self.states.keep(rows)]
        self._keep(rows)

    @abstractmethod
    def _keep(self, rows: Sequence[int]) -> None:
        """Appends the keys and values of all these rows."""

    def shorten(self, length: int) -> None:
        """Drops all cached tokens but the first `length`; with recurrent layers, more of them where that must be."""
        self.length = length if self.states is None else self.states.shorten(length)

    def hold(self) -> None:
        """Makes sure that what is cached now can be gone back to by `shorten`, until this is called again."""
        if self.states is not None:
            self.states.hold()

    def fork(self, length: int | None = None) -> Self:
        """Another cache with the first `length` cached tokens, or all. From then on, each of the two changes by itself.

        With recurrent layers it may have fewer tokens. Raises OutOfRoom.
        """
        length = self.length if length is None else length
        if self.states is None:
            return self._fork(length)
        states, length = self.states.fork(length)
        copy = self._fork(length)
        copy.states = states
        return copy

    @abstractmethod
    def _fork(self, length: int) -> Self:
        """Another cache with the keys and values of the first `length` cached tokens."""

    @abstractmethod
    def export(self, begin: int, end: int) -> Tensor:
        """A copy of the keys and values of the cached tokens [begin, end), one behind the other, for `append`."""

    @torch.inference_mode()
    def append(self, numbers: Tensor, shapes: Mapping[int, LayerShape]) -> None:
        """Adds tokens that a cache of the same kind and model has exported; they must be those that come next.

        shapes: of the layers, by their indices. Raises OutOfRoom.
        """
        num_tokens = numbers.numel() // sum(shape.numbers for shape in shapes.values())
        self.reserve(num_tokens)
        self._write(numbers, num_tokens, shapes)
        self.length += num_tokens

    @abstractmethod
    def _write(self, numbers: Tensor, num_tokens: int, shapes: Mapping[int, LayerShape]) -> None:
        """Writes exported tokens behind the cached ones, for which memory is reserved."""

    @abstractmethod
    def read_layer(self, layer: int, begin: int, end: int) -> Tensor:
        """A copy of one layer's keys and values of the tokens [begin, end), some of which may lie behind the cached
        ones, for `write_layer`.
        """

    @abstractmethod
    def write_layer(self, layer: int, begin: int, end: int, numbers: Tensor) -> None:
        """Writes what a cache of the same kind and model has read, for which memory must be reserved."""

    def release(self) -> None:
        """Gives the memory back; the cache is empty then. Nothing happens if it holds none."""
        if self.states is not None:
            self.states.clear()
        self._release()

    @abstractmethod
    def _release(self) -> None:
        """Gives the memory of keys and values back."""

    def evict(self) -> None:
        """Gives the memory back for another sequence. The tokens must be computed again."""
        self.release()
        self.was_evicted = True

    def take_eviction(self) -> bool:
        """Whether the cache has been evicted since this was last asked."""
        was_evicted, self.was_evicted = self.was_evicted, False
        return was_evicted


@dataclass(frozen=True)
class Offset:
    """What a model adds to the numbers of its rows, 0 to R - 1, to get their positions."""

    positions: Tensor

    def __radd__(self, numbers: Tensor) -> Tensor:
        return self.positions


class RowsOnly(Cache):
    """What a transformers model is given as its cache: it returns a layer's own rows alone.

    Attention writes them to the sequences' own caches, and reads the prefixes there. positions: [R] of the rows.
    """

    def __init__(self, num_layers: int, positions: Tensor):
        super().__init__(layers=[])
        self.num_layers, self.positions = num_layers, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    # Models may call the rest. Little of it matters, as positions and masks are passed to them.

    @property
    def is_compileable(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.num_layers

    def get_seq_length(self, layer_idx: int | None = None) -> int | Offset:
        """Returns 0, or for a layer what turns the numbers of rows into their positions, which no length does."""
        return 0 if layer_idx is None else Offset(self.positions)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


class OutOfRoom(RuntimeError):
    """The sequences of a step need more memory than there is for keys and values, even with all others evicted."""

    def __init__(self, num_pages: int, most: int):
        super().__init__(
            f"a step needs {num_pages * PAGE:,} tokens of keys and values, and there is room for {most * PAGE:,} "
            "(model.kv_memory)"
        )


class KVMemory(ABC):
    """Opens caches, and evicts those that were used least recently when others need their memory.

    num_pages: the bound. keeps_states: whether the model has recurrent layers, so that caches have states. state_bytes:
    what the states of all caches may take before those are evicted that are not in use.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self.keeps_states, self.state_bytes = False, math.inf
        # The pages that each cache of the step needs for which memory is being reserved, by identity.
        self._needed: dict[int, int] = {}
        # The caches that are in use, by identity; the one that was used least recently is first.
        self._open: OrderedDict[int, ReferenceType[KVCache]] = OrderedDict()

    @abstractmethod
    def open(self, capacity: int = 0) -> KVCache:
        """An empty cache. capacity: tokens that it is likely to have."""

    def limit(self, num_pages: int) -> None:
        """Lowers the bound, so that ranks which compute the same steps evict the same sequences."""
        self.num_pages = min(self.num_pages, num_pages)

    def reserve(self, needs: Sequence[tuple[KVCache, int]]) -> None:
        """Reserves memory in each cache for so many rows of a step. No cache of the step is evicted for another one.

        Other caches are evicted, those that were used least recently first; then the caches of the step give back what
        they hold beyond their needs. Raises OutOfRoom, before anything is evicted, if that cannot be enough.
        """
        has_room = True
        for cache, num_rows in needs:
            self._open.move_to_end(id(cache))
            has_room = has_room and cache.has_room(cache.length + num_rows)
        if not has_room:
            self._make_room_for_all([(cache, cache.length + num_rows) for cache, num_rows in needs])

    @torch.inference_mode()
    def _make_room_for_all(self, lengths: Sequence[tuple[KVCache, int]]) -> None:
        """Reserves memory for so many tokens in each cache."""
        self._needed = {id(cache): pages_of(num_tokens) for cache, num_tokens in lengths}
        try:
            if (num_pages := self._count_needed([cache for cache, _ in lengths])) > self.num_pages:
                raise OutOfRoom(num_pages, self.num_pages)
            while self._num_state_bytes() > self.state_bytes and self._evict_one():
                pass
            for cache, num_tokens in lengths:
                self._make_room(cache, num_tokens)
        finally:
            self._needed = {}

    @abstractmethod
    def _make_room(self, cache: KVCache, num_tokens: int) -> None:
        """Reserves memory for so many tokens in a cache of the step at hand, for which memory is reserved."""

    def _count_needed(self, caches: list[KVCache]) -> int:
        """The number of pages that the step at hand needs, of which these are all caches."""
        return sum(self._needed.values())

    def _of_step(self) -> list[KVCache]:
        """The caches of the step at hand."""
        return [cache for cache in self._caches() if id(cache) in self._needed]

    def _shrink_step(self) -> bool:
        """Has the caches of the step at hand give back what they do not need; returns whether any held as much."""
        too_large = [cache for cache in self._of_step() if cache.num_pages > self._needed[id(cache)]]
        for cache in too_large:
            cache.shrink(self._needed[id(cache)])
        return bool(too_large)

    def _free_pages(self, num_pages: int, cache: KVCache) -> None:
        """Evicts caches until a cache of the step at hand can have so many pages, then has the step's caches shrink."""
        others = [one for one in self._caches() if one is not cache]
        while (is_full := num_pages + sum(one.num_pages for one in others) > self.num_pages) and self._evict_one():
            pass
        if is_full:
            self._shrink_step()

    def _num_state_bytes(self) -> int:
        if not self.keeps_states:
            return 0
        return sum(cache.states.num_bytes for cache in self._caches() if cache.states is not None)

    def _add(self, cache: KVCache) -> None:
        if self.keeps_states:
            cache.states = RecurrentStates()
        place = id(cache)
        self._open[place] = ref(cache, lambda _: self._open.pop(place, None))

    def _evict_one(self, *spared: KVCache) -> bool:
        """Evicts the cache that was used least recently, but none of these and none of the step at hand; returns
        whether there was one.
        """
        for cache in self._caches():
            if cache.num_pages and id(cache) not in self._needed and not any(cache is one for one in spared):
                cache.evict()
                return True
        return False

    def _caches(self) -> list[KVCache]:
        return [cache for reference in self._open.values() if (cache := reference()) is not None]

    @property
    def num_used(self) -> int:
        """Pages that caches hold; one that several share counts for each."""
        return sum(cache.num_pages for cache in self._caches())
