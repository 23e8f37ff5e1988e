"""Pages are given out in runs where that is possible, counted, and never given out twice."""

from __future__ import annotations

import pytest

from lp.kv_cache.arena import PageAllocator


def test_a_sequence_grows_in_place_while_it_can() -> None:
    pages = PageAllocator(10, num_reserved=1)
    first, second = pages.take(2), pages.take(1)
    assert (first, second) == ([1, 2], [3]) and pages.num_free == 6
    assert pages.take(2, after=3) == [4, 5]
    assert pages.take(2, after=2) == [6, 7], "another run, as the pages behind are taken"
    pages.give_back([4])
    assert pages.take(3) == [4, 8, 9], "what is left, as there is no run"
    assert pages.take(1) is None and pages.take(0) == []


def test_a_shared_page_is_free_when_its_last_user_is_gone() -> None:
    pages = PageAllocator(4)
    own = pages.take(2)
    assert own is not None
    other = pages.share(own)
    assert pages.is_shared(own[0])
    pages.give_back(own)
    assert own == [] and not pages.is_shared(other[0]) and pages.num_free == 2
    pages.give_back(other)
    assert pages.num_free == 4
    with pytest.raises(AssertionError, match="twice"):
        pages.give_back([0])


def test_a_limit_leaves_pages_unused() -> None:
    pages = PageAllocator(6)
    pages.limit(3)
    assert pages.num_free == 3 and pages.take(4) is None and pages.take(3) == [0, 1, 2]
