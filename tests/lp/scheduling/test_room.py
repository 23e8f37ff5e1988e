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
    return [one for one, _ in room.placed(running)]


def test_the_first_go_on_and_none_overtakes() -> None:
    first, large, small = Taker(PAGE), Taker(3 * PAGE), Taker(1)
    assert fitting(KVBudget(5), [first, large, small]) == [first, large, small]
    assert fitting(KVBudget(4), [first, large, small]) == [first, large]
    assert fitting(KVBudget(3), [first, large, small]) == [first]
    assert fitting(KVBudget(3), [large, small]) == [large]
    assert fitting(KVBudget(1), [large, small]) == [large], "the first always goes on"
    assert fitting(KVBudget(), []) == []


def test_each_lies_whole_on_one_of_several_replicas() -> None:
    first, large, small = Taker(PAGE), Taker(3 * PAGE), Taker(1)
    assert KVBudget(3, 2).placed([first, large, small]) == [(first, 1), (large, 0), (small, 1)]
    assert KVBudget(3, 2).placed([first, large, large, small]) == [(first, 1), (large, 0)], "none overtakes"
    owners = {PAGE: 0, 3 * PAGE: 0, 1: None}
    assert KVBudget(3, 2).placed([first, large, small], lambda one: owners[one.num_slots]) == [
        (first, 1), (large, 0), (small, 1)
    ], "the smaller one moves"  # fmt: skip
    pinned = KVBudget(3, 2, may_move=False)
    assert pinned.placed([first, large, small], lambda one: owners[one.num_slots]) == [(first, 0)]
    assert KVBudget(3, 2).describe() == "keys and values: room for 1,536 tokens in all, 768 on each of 2 replicas"
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
