"""KVBudget for keys and values: who may go on, who waits, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lp import Auto, Autoregressive, Lookahead
from lp.kv_cache.cache import PAGE
from lp.scheduling.kv_budget import KVBudget, RequestTooLarge


@dataclass
class Taker:
    num_slots: int


def fitting(room: KVBudget, running: list[Taker]) -> list[Taker]:
    return room.first(running)


def test_the_first_go_on_and_none_overtakes() -> None:
    first, large, small = Taker(PAGE), Taker(3 * PAGE), Taker(1)
    assert fitting(KVBudget(5), [first, large, small]) == [first, large, small]
    assert fitting(KVBudget(4), [first, large, small]) == [first, large]
    assert fitting(KVBudget(3), [first, large, small]) == [first]
    assert fitting(KVBudget(3), [large, small]) == [large]
    assert fitting(KVBudget(1), [large, small]) == [large], "the first always goes on"
    assert fitting(KVBudget(), []) == []


def test_the_room_is_described() -> None:
    assert KVBudget(3).describe() == "keys and values: room for 768 tokens in all"


def test_most_rows_of_a_step() -> None:
    assert Autoregressive().most_rows() == 1
    assert Lookahead(3, 4, 5).most_rows() == 25
    assert Auto(max_rows=16).most_rows() == 16 and Auto(max_rows=16, rows=40).most_rows() == 40


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    room = KVBudget(2)
    room.check(500, 12, Autoregressive())
    assert room.most_new_tokens(500, Autoregressive()) == 12
    message = (
        r"prompt of 500 tokens and max_new_tokens=13 .* model\.kv_memory holds 512 tokens, 1 of them .* at most 12 new"
    )
    with pytest.raises(RequestTooLarge, match=message):
        room.check(500, 13, Autoregressive())
    with pytest.raises(RequestTooLarge, match=r"shorten the prompt, or raise model\.kv_memory"):
        room.check(600, 1, Autoregressive())
