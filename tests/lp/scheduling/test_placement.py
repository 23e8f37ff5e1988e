"""Sequences on replicas: whatever is admitted can be placed, nobody gets more pages than there are, and few move."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lp.scheduling.placement import place, place_first, place_pinned

Cases = tuple[list[int], list[int | None], int, int]


@st.composite
def cases(draw: st.DrawFn) -> Cases:
    """Pages of sequences, their owners, the pages of a replica and the number of replicas."""
    num_pages, num_replicas = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    needs = draw(st.lists(st.integers(1, num_pages), max_size=24))
    owner = st.one_of(st.none(), st.integers(0, num_replicas - 1))
    owners = draw(st.lists(owner, min_size=len(needs), max_size=len(needs)))
    return needs, owners, num_pages, num_replicas


def pages_by_replica(needs: list[int], homes: list[int] | list[int | None], num_replicas: int) -> list[int]:
    pages = [0] * num_replicas
    for need, home in zip(needs, homes, strict=False):
        if home is not None:
            pages[home] += need
    return pages


@given(cases())
@settings(max_examples=300, deadline=None)
def test_the_first_are_placed_and_nowhere_are_more_pages_than_there_are(case: Cases) -> None:
    needs, owners, num_pages, num_replicas = case
    homes = place_first(*case)
    assert homes == place_first(*case) and len(homes) >= min(1, len(needs))
    assert max(pages_by_replica(needs, homes, num_replicas)) <= num_pages
    if len(homes) < len(needs):
        assert place(needs[: len(homes) + 1], owners[: len(homes) + 1], num_pages, num_replicas) is None
        assert sum(needs[: len(homes) + 1]) > num_pages, "one replica alone has room for them"


@given(cases())
@settings(max_examples=300, deadline=None)
def test_nobody_moves_if_all_have_room_where_they_are(case: Cases) -> None:
    needs, owners, num_pages, num_replicas = case
    owned = [number for number, owner in enumerate(owners) if owner is not None]
    held = pages_by_replica([needs[one] for one in owned], [owners[one] for one in owned], num_replicas)
    if max(held) <= num_pages:
        assert place([needs[one] for one in owned], [owners[one] for one in owned], num_pages, num_replicas) == [
            owners[one] for one in owned
        ]
    homes = place_first(*case)
    assert place_first(needs[: len(homes)], list(homes), num_pages, num_replicas) == homes, "it is stable"


@given(cases())
@settings(max_examples=300, deadline=None)
def test_pinned_ones_stay_and_none_begins_before_one_that_waits(case: Cases) -> None:
    needs, owners, num_pages, num_replicas = case
    homes = place_pinned(*case)
    assert homes == place_pinned(*case) and len(homes) == len(needs)
    assert max(pages_by_replica(needs, homes, num_replicas)) <= num_pages
    assert all(home in (None, owner) for home, owner in zip(homes, owners, strict=True) if owner is not None)
    assert not needs or any(home is not None for home in homes)
    waiting = [number for number, home in enumerate(homes) if home is None]
    begun = [number for number, home in enumerate(homes) if home is not None and owners[number] is None]
    assert not waiting or not begun or max(begun) < min(waiting) or begun == [0]


def test_all_pages_of_all_replicas_are_used() -> None:
    assert place_first([2] * 9, [None] * 9, 4, 3) == [0, 1, 2, 0, 1, 2]
    assert place_first([3, 3, 3, 3], [None] * 4, 4, 3) == [0, 1, 2], "each lies whole on one replica"
    assert place_first([5, 1], [None, None], 4, 2) == [0], "the first always goes on"
    assert place_first([], [], 4, 2) == []


def test_new_ones_go_where_there_are_the_fewest() -> None:
    assert place_first([4, 1, 1], [0, None, None], 9, 2) == [0, 1, 1]
    assert place_first([1, 1, 1, 1], [0, 0, None, None], 9, 2) == [0, 0, 1, 1]


def test_small_ones_move_so_that_a_large_one_has_room() -> None:
    assert place([3, 1, 1, 3], [0, 0, 1, None], 4, 2) == [0, 0, 1, 1]
    assert place([2, 1, 1, 4], [0, 0, 1, None], 4, 2) == [0, 0, 0, 1]
    assert place([5, 4, 2], [0, 0, 1], 8, 2) == [0, 1, 1], "two have outgrown their replica together"


def test_groups_that_must_be_made_anew_keep_most_of_their_pages_where_they_are() -> None:
    assert place([3, 3, 3, 3, 2, 2, 2], [0, 1, 2, None, 1, 2, None], 6, 3) == [0, 0, 2, 2, 1, 1, 1]


def test_the_last_one_on_a_replica_that_has_become_too_small_waits() -> None:
    assert place_pinned([3, 1, 2, 1], [0, 1, 0, 1], 4, 2) == [0, 1, None, 1]
    assert place_pinned([3, 1, 2, 1], [0, 1, 0, None], 4, 2) == [0, 1, None, None], "none overtakes one that waits"
    assert place_pinned([3, 1, 2, 1], [0, 1, None, 1], 4, 2) == [0, 1, 1, 1]
    assert place_pinned([3, 3, 3, 1], [0, 1, None, None], 4, 2) == [0, 1, None, None]
