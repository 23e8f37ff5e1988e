"""One arena of keys and values for all layers and all sequences, in pages, as a GPU's attention kernels read them.

A layer's keys are [pages, PAGE, heads, head_dim], and so are its values. All layers' keys and values of one shape are
one tensor, so that an operation on pages is one operation for all layers. A page has the same number in every layer,
and a sequence has a list of pages, the block table. So a captured graph, which is bound to the arena alone, serves
every sequence: it reads block tables, lengths and slots from the device.

    slot: where a token lies, page * PAGE + offset

Page 0 belongs to no sequence: padding rows are written there.

Sequences that were forked share their full pages. A page that is shared is never written: it is copied first.

What torch computes without a graph reads a view of a sequence whose pages happen to be consecutive, and a copy of
scattered ones, made for each layer.

Rows that are kept lie among rows that are not, and must be copied to the end of the prefix. A cache notes that, and the
copy is made at the beginning of the next step, for which it needs no launch of its own in a captured graph. What reads
or copies the sequence before that calls `PagedCache.apply_moves` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache import moves as moving
from lp.kv_cache.cache import PAGE, KVCache, KVMemory, LayerShape, OutOfRoom, pages_of
from lp.kv_cache.moves import NO_MOVES, NOWHERE, positions_to_move
from lp.platform.hardware import upload


class PageAllocator:
    """Counts the users of each page."""

    def __init__(self, num_pages: int, num_reserved: int = 0):
        """num_reserved: the first pages that are never given out."""
        self._num_users = np.zeros(num_pages, np.int32)
        self._num_users[:num_reserved] = 1
        self._limit = num_pages
        self._num_extra = 0  # users beyond the first of all pages

    @property
    def num_free(self) -> int:
        return int(np.count_nonzero(self._num_users[: self._limit] == 0))

    def limit(self, num_pages: int) -> None:
        """Leaves all pages from this number on unused. None of them may be in use."""
        assert not self._num_users[num_pages:].any(), "pages beyond the limit are in use"
        self._limit = min(self._limit, num_pages)

    @property
    def has_shared(self) -> bool:
        """Whether any page has several users."""
        return self._num_extra > 0

    def is_shared(self, page: int) -> bool:
        return bool(self._num_users[page] > 1)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """Gives out pages, consecutive ones if possible; None if there are not enough. after: the last page that their
        sequence has already.
        """
        if count == 0:
            return []
        free = np.flatnonzero(self._num_users[: self._limit] == 0)
        if len(free) < count:
            return None
        found = _run_at(free, after + 1, count) if after is not None else None
        if found is None:
            found = _first_run(free, count)
        if found is None:
            found = free[:count]
        self._num_users[found] = 1
        return found.tolist()

    def share(self, pages: Iterable[int]) -> list[int]:
        """Adds a user to each page; returns the pages."""
        shared = list(pages)
        self._num_users[shared] += 1
        self._num_extra += len(shared)
        return shared

    def give_back(self, pages: list[int]) -> None:
        """Removes a user of each page, and empties the list."""
        if pages:
            assert (self._num_users[pages] > 0).all(), "a page is given back twice"
            self._num_extra -= int(np.count_nonzero(self._num_users[pages] > 1))
            self._num_users[pages] -= 1
            pages.clear()


def _run_at(free: np.ndarray, first: int, count: int) -> np.ndarray | None:
    """The free pages from `first` on, if as many as that are free one behind the other."""
    at = int(np.searchsorted(free, first))
    run = free[at : at + count]
    return run if len(run) == count and run[0] == first and run[-1] == first + count - 1 else None


def _first_run(free: np.ndarray, count: int) -> np.ndarray | None:
    """The first free pages of which as many as that are consecutive."""
    starts = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1)
    return free[starts[0] : starts[0] + count] if len(starts) else None


class Arena(KVMemory):
    """See the module. keys, values: [pages, PAGE, heads, head_dim] of each layer that is held here. stores: by shape,
    [n, pages, PAGE, heads, head_dim], the n layers' keys and then their values.
    """

    def __init__(
        self,
        shapes: Mapping[int, LayerShape],
        num_layers: int,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        """shapes: of the layers that are held here. num_layers: of the model."""
        super().__init__(num_pages)
        self.num_layers, self.device = num_layers, device
        self.allocator = PageAllocator(num_pages + 1, num_reserved=1)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.stores: list[Tensor] = []
        places = [(self.keys, layer, shape.heads, shape.key_dim) for layer, shape in shapes.items()]
        places += [(self.values, layer, shape.heads, shape.value_dim) for layer, shape in shapes.items()]
        for kind in dict.fromkeys((heads, dim) for _, _, heads, dim in places):
            alike = [(owner, layer) for owner, layer, *found in places if tuple(found) == kind]
            store = torch.empty(len(alike), num_pages + 1, PAGE, *kind, dtype=dtype, device=device)
            store[:, 0].zero_()  # what padding rows read must be numbers
            self.stores.append(store)
            for (owner, layer), part in zip(alike, store, strict=True):
                owner[layer] = part

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all layers."""
        return sum(store[:, 0].numel() * store.element_size() for store in self.stores)

    def stores_of(self, layer: int) -> list[Tensor]:
        return [self.keys[layer][None], self.values[layer][None]]

    def open(self, capacity: int = 0) -> PagedCache:
        cache = PagedCache(self)
        self._add(cache)
        return cache

    def limit(self, num_pages: int) -> None:
        super().limit(num_pages)
        self.allocator.limit(self.num_pages + 1)

    def _count_needed(self, caches: list[KVCache]) -> int:
        """See KVMemory. Caches may share the pages that their next rows are not written to."""
        if (most := super()._count_needed(caches)) > self.num_pages:
            full = [page for cache in caches for page in cast(PagedCache, cache).pages[: cache.length // PAGE]]
            most -= len(full) - len(set(full))
        return most

    def _make_room(self, cache: KVCache, num_tokens: int) -> None:
        """Gives a cache pages for so many tokens, and makes all those its own that it is going to write."""
        assert isinstance(cache, PagedCache)
        cache.places, num_pages = None, pages_of(num_tokens)
        for place in range(cache.length // PAGE, min(num_pages, len(cache.pages))):
            while self.allocator.is_shared(cache.pages[place]) and not self._make_own(cache, place):
                has_freed = self._evict_one() or self._shrink_step()  # perhaps the last one that shares the page
                assert has_freed, "no other sequence shares the page"
        while not self._extend(cache, num_pages):
            has_freed = self._evict_one() or self._shrink_step()
            assert has_freed, "a step needs no more pages than there are"

    def fork(self, cache: PagedCache, length: int) -> PagedCache:
        """Another cache with the same first tokens, which shares full pages."""
        copy = self.open()
        full = length // PAGE
        count = pages_of(length) - full
        taken = self._take(count, cache, copy)
        copy.pages += self.allocator.share(cache.pages[:full])
        copy.pages += taken
        copy.length = length
        if count:
            moving.copy_pages(self.stores, cache.pages[full], copy.pages[full], count)
        return copy

    def move_given(self, moves: Tensor, move_starts: Tensor) -> None:
        """Copies tokens from slots to slots that the device has; see lp/kv_cache/moves.py."""
        moving.move_given(self.stores, moves, move_starts)

    def move(self, moves: np.ndarray) -> None:
        """Copies tokens from slots to slots: int64 [2, n]."""
        moving.move(self.stores, moves)

    def _take(self, count: int, *others: PagedCache) -> list[int]:
        """Pages for one of these caches, evicting others if need be."""
        while (taken := self.allocator.take(count)) is None:
            if not self._evict_one(*others):
                raise OutOfRoom(count + max(len(cache.pages) for cache in others), self.num_pages)
        return taken

    def _make_own(self, cache: PagedCache, place: int) -> bool:
        """Puts a page of the cache's own in the place of one that is shared; returns whether there was a free one."""
        if (own := self.allocator.take(1)) is None:
            return False
        page = cache.pages[place]
        if place * PAGE < cache.length:
            moving.copy_pages(self.stores, page, own[0], 1)
        cache.pages[place] = own[0]
        self.allocator.give_back([page])
        return True

    def _extend(self, cache: PagedCache, num_pages: int) -> bool:
        """Gives a cache as many pages as that; returns whether there are enough."""
        if (missing := num_pages - len(cache.pages)) <= 0:
            return True
        if (taken := self.allocator.take(missing, after=cache.pages[-1] if cache.pages else None)) is None:
            return False
        cache.pages += taken
        return True


@dataclass
class _Places:
    """Where an eager step reads and writes. new: int64 [R] slots. pages: int64 [n], or None if they are one run."""

    new: Tensor
    pages: Tensor | None


class PagedCache(KVCache):
    """See KVCache. pages: the sequence's pages in the arena, in order; the memory behind them is the arena's. moves:
    the positions from which and to which tokens must still be copied.
    """

    def __init__(self, arena: Arena):
        super().__init__()
        self.arena = arena
        self.pages: list[int] = []
        self.places: _Places | None = None
        self.moves = NOWHERE
        finalize(self, arena.allocator.give_back, self.pages)

    @property
    def capacity(self) -> int:
        return len(self.pages) * PAGE

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def num_bytes(self) -> int:
        num_bytes = len(self.pages) * self.arena.page_bytes
        return num_bytes if self.states is None else num_bytes + self.states.num_bytes

    @property
    def is_written(self) -> bool:
        return True

    def has_room(self, num_tokens: int) -> bool:
        if num_tokens > PAGE * len(self.pages) or self.places is not None:
            return False
        allocator = self.arena.allocator
        if not allocator.has_shared:
            return True
        return not any(map(allocator.is_shared, self.pages[self.length // PAGE : -(-num_tokens // PAGE)]))

    def reserve(self, num_rows: int) -> None:
        self.arena.reserve([(self, num_rows)])

    def shrink(self, num_pages: int) -> None:
        if len(self.pages) > num_pages:
            self.apply_moves()  # rows that are still to be copied may lie there
            self.arena.allocator.give_back(self.pages[num_pages:])
            del self.pages[num_pages:]

    def slots(self, positions: np.ndarray) -> np.ndarray:
        """int64 slots of the tokens at these positions."""
        return np.asarray(self.pages, np.int64)[positions // PAGE] * PAGE + positions % PAGE

    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        num_rows = key_states.shape[2]
        if self.places is None:
            self.apply_moves()
            self.places = self._find_places(num_rows)
        for owner, states in ((self.arena.keys, key_states), (self.arena.values, value_states)):
            owner[layer].flatten(0, 1).index_copy_(0, self.places.new, states[0].transpose(0, 1))
        return self.seen_by(num_rows, layer)

    def seen_by(self, num_rows: int, layer: int) -> tuple[Tensor, Tensor]:
        return self._seen(self.arena.keys[layer], num_rows), self._seen(self.arena.values[layer], num_rows)

    def _seen(self, store: Tensor, num_rows: int) -> Tensor:
        """A layer's keys or values of the cached tokens and of a step's rows, [1, heads, length + R, head_dim]."""
        assert self.places is not None, "a layer of the step has written its rows"
        if self.places.pages is None:
            pages = store[self.pages[0] : self.pages[-1] + 1]
        else:
            pages = store.index_select(0, self.places.pages)
        return pages.flatten(0, 1)[: self.length + num_rows].transpose(0, 1)[None]

    def _find_places(self, num_rows: int) -> _Places:
        new, pages = self._slots_between(self.length, self.length + num_rows), np.asarray(self.pages, np.int64)
        return _Places(new, None if (np.diff(pages) == 1).all() else upload(pages, self.arena.device))

    def _slots_between(self, begin: int, end: int) -> Tensor:
        return upload(self.slots(np.arange(begin, end)), self.arena.device)

    @torch.inference_mode()
    def export(self, begin: int, end: int) -> Tensor:
        self.apply_moves()
        return moving.read_slots(self.arena.stores, self._slots_between(begin, end))

    def _write(self, numbers: Tensor, num_tokens: int, shapes: Mapping[int, LayerShape]) -> None:
        self.apply_moves()
        moving.write_slots(self.arena.stores, self._slots_between(self.length, self.length + num_tokens), numbers)

    def read_layer(self, layer: int, begin: int, end: int) -> Tensor:
        return moving.read_slots(self.arena.stores_of(layer), self._slots_between(begin, end))

    def write_layer(self, layer: int, begin: int, end: int, numbers: Tensor) -> None:
        moving.write_slots(self.arena.stores_of(layer), self._slots_between(begin, end), numbers)

    def _keep(self, rows: Sequence[int]) -> None:
        if rows and rows[-1] != len(rows) - 1:  # they ascend, so otherwise all are in their places
            if self.moves[0]:
                self.apply_moves()
            self.moves = positions_to_move(rows, self.length)
        self.length += len(rows)
        self.places = None

    @property
    def num_moves(self) -> int:
        return len(self.moves[0])

    def take_moves(self) -> np.ndarray:
        """int64 [2, n] the slots from which and to which tokens must still be copied, which is the caller's to do."""
        moves, self.moves = self.moves, NOWHERE
        return self.slots(np.array(moves, np.int64)) if moves[0] else NO_MOVES

    @torch.inference_mode()
    def apply_moves(self) -> None:
        """Copies what must still be copied. Called before the keys and values are read without a step."""
        if self.num_moves:
            self.arena.move(self.take_moves())

    @torch.inference_mode()
    def _fork(self, length: int) -> PagedCache:
        self.apply_moves()
        return self.arena.fork(self, length)

    def _release(self) -> None:
        self.arena.allocator.give_back(self.pages)
        self.length, self.places, self.moves = 0, None, NOWHERE
