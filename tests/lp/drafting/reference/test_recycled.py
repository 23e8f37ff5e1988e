"""Recycled answers: the closest match is found, positions count under sampling, and memory is bounded."""

from __future__ import annotations

import pytest

from lp.drafting import drafter
from lp.drafting.ngrams import context_of, pairs
from tests.lp.drafting.reference.sources import Match, RecycledAnswers


def answers(by_place: bool, capacity: int = 100) -> RecycledAnswers:
    """Answers for three rows: token 4 after 5 at position 30, 2 after 3 at 20, and 2 after 1 at 10."""
    found = RecycledAnswers(2, by_place, capacity)
    found.add(pairs([5, 3, 1], [4, 2, 2]), [(41, 42), (23, 24), (21, 22)], [30, 20, 10], [])
    return found


def lookup(found: RecycledAnswers, previous: int, token: int, position: int) -> list[tuple[Match, tuple[int, ...]]]:
    return found.lookup(context_of([6, previous, token]), position)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 2, 99), [(Match.pair, (21, 22)), (Match.token, (23, 24))]),
        ((3, 2, 99), [(Match.pair, (23, 24))]),
        ((7, 2, 99), [(Match.token, (23, 24))]),
        ((7, 7, 99), []),
        ((7, 7, 30), [(Match.place, (41, 42))]),
        ((7, 2, 30), [(Match.token, (23, 24))]),
    ],
)
def test_greedy_answers(asked: tuple[int, int, int], expected: list[tuple[Match, tuple[int, ...]]]) -> None:
    assert lookup(answers(by_place=False), *asked) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 2, 10), [(Match.pair_and_place, (21, 22)), (Match.pair, (21, 22)), (Match.token, (23, 24))]),
        ((7, 2, 10), [(Match.token_and_place, (21, 22)), (Match.token, (23, 24))]),
        ((1, 2, 30), [(Match.place, (41, 42)), (Match.pair, (21, 22)), (Match.token, (23, 24))]),
        ((1, 2, 99), [(Match.pair, (21, 22)), (Match.token, (23, 24))]),
        ((7, 7, 30), [(Match.place, (41, 42))]),
    ],
)
def test_under_sampling_answers_at_the_same_position_come_first(
    asked: tuple[int, int, int], expected: list[tuple[Match, tuple[int, ...]]]
) -> None:
    assert lookup(answers(by_place=True), *asked) == expected


def test_the_newest_answer_counts() -> None:
    found = answers(by_place=False)
    found.add(pairs([1], [2]), [(5, 6)], [11], [])
    assert lookup(found, 1, 2, 99) == [(Match.pair, (5, 6))]


def test_of_rows_with_equal_keys_a_right_one_is_kept_or_else_the_first() -> None:
    alike, places, best = pairs([1, 1, 1], [2, 2, 2]), [11, 11, 11], [(1, 2), (3, 4), (5, 6)]
    for right_rows, expected in [([], (1, 2)), ([1], (3, 4)), ([1, 2], (5, 6))]:
        found = RecycledAnswers(2, by_place=True, capacity=100)
        found.add(alike, best, places, right_rows)
        assert lookup(found, 1, 2, 11) == [(Match.pair_and_place, expected), (Match.pair, expected)]


def test_positions_that_the_text_has_passed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter, "MOST_ANSWERED_PLACES", 2)
    found = answers(by_place=True)
    found.forget(before=20)
    assert lookup(found, 7, 7, 10) == []
    assert lookup(found, 7, 7, 20) == [(Match.place, (23, 24))]
    assert lookup(found, 3, 2, 20)[0] == (Match.pair_and_place, (23, 24))


def test_the_oldest_answers_are_forgotten() -> None:
    found = answers(by_place=False, capacity=1)
    found.forget(before=0)
    assert lookup(found, 1, 2, 99) == [] and lookup(found, 5, 4, 99) == [(Match.pair, (41, 42))]
