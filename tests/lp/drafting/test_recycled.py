"""Recycled answers: the closest match is found, places count under sampling, memory is bounded."""

from __future__ import annotations

import pytest

from lp.drafting import recycled
from lp.drafting.recycled import Match, RecycledAnswers

ROWS = [1, 3, 5], [2, 2, 4], [10, 20, 30], [[21, 22], [23, 24], [41, 42]]
"""Previous tokens, tokens, positions and answers: 2 after 1 at 10, 2 after 3 at 20, 4 after 5 at 30."""


def answers(by_place: bool, capacity: int = 100) -> RecycledAnswers:
    found = RecycledAnswers(capacity, by_place)
    found.add(*ROWS)
    return found


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 2, 99), [(Match.pair, [21, 22])]),
        ((7, 2, 99), [(Match.token, [23, 24])]),
        ((7, 7, 99), []),
        ((7, 7, 30), [(Match.place, [41, 42])]),
        ((7, 2, 30), [(Match.token, [23, 24])]),
    ],
)
def test_greedy_answers(asked: tuple[int, int, int], expected: list[tuple[Match, list[int]]]) -> None:
    assert answers(by_place=False).lookup(*asked) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 2, 10), [(Match.pair_and_place, [21, 22]), (Match.pair, [21, 22])]),
        ((7, 2, 10), [(Match.token_and_place, [21, 22]), (Match.token, [23, 24])]),
        ((1, 2, 30), [(Match.place, [41, 42]), (Match.pair, [21, 22])]),
        ((1, 2, 99), [(Match.pair, [21, 22])]),
        ((7, 7, 30), [(Match.place, [41, 42])]),
    ],
)
def test_sampled_answers_of_the_same_place_come_first(
    asked: tuple[int, int, int], expected: list[tuple[Match, list[int]]]
) -> None:
    assert answers(by_place=True).lookup(*asked) == expected


def test_the_newest_answer_counts() -> None:
    found = answers(by_place=False)
    found.add([1, 1], [2, 2], [11, 11], [[5, 6], [7, 8]])
    assert found.lookup(1, 2, 99) == [(Match.pair, [7, 8])]


def test_places_that_the_text_has_passed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycled, "MOST_PLACES", 2)
    found = answers(by_place=True)
    found.forget(before=20)
    assert found.lookup(7, 7, 10) == []
    assert found.lookup(7, 7, 20) == [(Match.place, [23, 24])]
    assert found.lookup(3, 2, 20)[0] == (Match.pair_and_place, [23, 24])


def test_the_oldest_answers_are_forgotten() -> None:
    found = answers(by_place=False, capacity=1)
    found.forget(before=0)
    assert found.lookup(1, 2, 99) == [] and found.lookup(5, 4, 99) == [(Match.pair, [41, 42])]
