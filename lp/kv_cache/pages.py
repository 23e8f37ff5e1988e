"""Which pages of an arena are free, and how many sequences share each of the others. Knows nothing of tensors.

Pages are given out in runs of consecutive numbers where that is possible, since such pages can be read as one piece.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class PageAllocator:
    """Counts the users of each page. in_runs: whether the pages of a sequence must be consecutive."""

    def __init__(self, num_pages: int, in_runs: bool, num_reserved: int = 0):
        """num_reserved: the first pages that are never given out."""
        self.in_runs = in_runs
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

    def is_shared(self, page: int) -> bool:
        return self._num_extra > 0 and bool(self._num_users[page] > 1)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """Gives out pages; None if there are not enough. after: the last page that their sequence has already.

        If the pages must be consecutive, those behind `after` are given out, or None.
        """
        if count == 0:
            return []
        free = np.flatnonzero(self._num_users[: self._limit] == 0)
        if len(free) < count:
            return None
        found = _run_at(free, after + 1, count) if after is not None else None
        if found is None and not (self.in_runs and after is not None):
            found = _first_run(free, count)
            if found is None and not self.in_runs:
                found = free[:count]
        if found is None:
            return None
        self._num_users[found] = 1
        return found.tolist()

    def share(self, pages: Iterable[int]) -> list[int]:
        """Adds a user to each page; returns the pages."""
        shared = list(pages)
        self._num_users[shared] += 1
        self._num_extra += len(shared)
        return shared

    def lay_out(self, users: list[list[int]], counts: list[int]) -> tuple[list[int], list[int]]:
        """Gives all users of pages, which share none, other pages: from the first one on, to each in turn as many as
        counted, which are at least those it has. Returns where all pages were that they had, and where they are now.
        """
        held, sources, targets = [len(pages) for pages in users], list[int](), list[int]()
        for pages in users:
            sources += pages
            self.give_back(pages)
        for pages, num_held, count in zip(users, held, counts, strict=True):
            taken = self.take(count)
            assert taken is not None, "others have pages"
            pages += taken
            targets += taken[:num_held]
        return sources, targets

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
