"""Memory for the keys and values of many sequences, with a bound.

A sequence is nothing but its token ids, so the memory of one that waits can be given to another: it is evicted, and its
tokens are computed again when it goes on. Who goes on at the same time is decided in lp/scheduling/room.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from weakref import ReferenceType, ref

from lp.model.kv_cache import PAGE, KVCache


class OutOfRoom(RuntimeError):
    """A sequence needs more memory than there is for keys and values, even with all others evicted."""

    def __init__(self, num_pages: int, most: int):
        super().__init__(
            f"a sequence needs {num_pages * PAGE:,} tokens of keys and values, and there is room for {most * PAGE:,} "
            "(model.kv_memory)"
        )


class KVMemory(ABC):
    """Opens caches, and evicts those that were used least recently when another one needs their room.

    num_pages: the bound.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        # The caches that are in use, by identity; the one that was used least recently is first.
        self._open: OrderedDict[int, ReferenceType[KVCache]] = OrderedDict()

    @abstractmethod
    def open(self, capacity: int = 0) -> KVCache:
        """An empty cache. capacity: tokens that it is likely to have."""

    def limit(self, num_pages: int) -> None:
        """Lowers the bound, so that ranks which compute the same steps evict the same sequences."""
        self.num_pages = min(self.num_pages, num_pages)

    def reserve(self, needs: Sequence[tuple[KVCache, int]]) -> None:
        """Makes room in each cache for so many rows of a step, in which no other cache takes part."""
        for cache, num_rows in needs:
            cache.reserve(num_rows)

    def use(self, cache: KVCache) -> None:
        """Notes that a cache is used now."""
        self._open.move_to_end(id(cache))

    def _add(self, cache: KVCache) -> None:
        place = id(cache)
        self._open[place] = ref(cache, lambda _: self._open.pop(place, None))

    def _evict_one(self, *besides: KVCache) -> bool:
        """Evicts the cache that was used least recently, but none of these; returns whether there was one."""
        for cache in self._caches():
            if cache.num_pages and not any(cache is one for one in besides):
                cache.evict()
                return True
        return False

    def _caches(self) -> list[KVCache]:
        return [cache for reference in self._open.values() if (cache := reference()) is not None]

    @property
    def num_used(self) -> int:
        """Pages that caches hold; one that several share counts for each."""
        return sum(cache.num_pages for cache in self._caches())
