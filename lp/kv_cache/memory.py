"""Memory for the keys and values of many sequences, with a bound.

A sequence is nothing but its token ids, so the memory of one that waits can be given to another: it is evicted, and its
tokens are computed again when it goes on. Who goes on at the same time is decided in lp/scheduling/kv_budget.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from weakref import ReferenceType, ref

import torch

from lp.kv_cache.cache import PAGE, KVCache, pages_of


class OutOfRoom(RuntimeError):
    """The sequences of a step need more memory than there is for keys and values, even with all others evicted."""

    def __init__(self, num_pages: int, most: int):
        super().__init__(
            f"a step needs {num_pages * PAGE:,} tokens of keys and values, and there is room for {most * PAGE:,} "
            "(model.kv_memory)"
        )


class KVMemory(ABC):
    """Opens caches, and evicts those that were used least recently when others need their room.

    num_pages: the bound.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        # The pages that each cache of the step needs for which room is being made, by identity.
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
        """Makes room in each cache for so many rows of a step. No cache of the step is evicted for another one.

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
        """Makes room for so many tokens in each cache."""
        self._needed = {id(cache): pages_of(num_tokens) for cache, num_tokens in lengths}
        try:
            if (num_pages := self._count_needed([cache for cache, _ in lengths])) > self.num_pages:
                raise OutOfRoom(num_pages, self.num_pages)
            for cache, num_tokens in lengths:
                self._make_room(cache, num_tokens)
        finally:
            self._needed = {}

    @abstractmethod
    def _make_room(self, cache: KVCache, num_tokens: int) -> None:
        """Makes room for so many tokens in a cache of the step at hand, for which there is room."""

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

    def _add(self, cache: KVCache) -> None:
        place = id(cache)
        self._open[place] = ref(cache, lambda _: self._open.pop(place, None))

    def _evict_one(self, *besides: KVCache) -> bool:
        """Evicts the cache that was used least recently, but none of these and none of the step at hand; returns
        whether there was one.
        """
        for cache in self._caches():
            if cache.num_pages and id(cache) not in self._needed and not any(cache is one for one in besides):
                cache.evict()
                return True
        return False

    def _caches(self) -> list[KVCache]:
        return [cache for reference in self._open.values() if (cache := reference()) is not None]

    @property
    def num_used(self) -> int:
        """Pages that caches hold; one that several share counts for each."""
        return sum(cache.num_pages for cache in self._caches())
