"""Room for keys and values: who may go on, who waits, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lp import Auto, Autoregressive, Lookahead, methods
from lp.model.kv_cache import PAGE
from lp.scheduling.room import NoRoom, Room


@dataclass
class Taker:
    num_slots: int


def test_the_first_go_on_and_none_overtakes() -> None:
    first, large, small = Taker(PAGE), Taker(3 * PAGE), Taker(1)
    assert Room(5).fitting([first, large, small]) == [first, large, small]
    assert Room(4).fitting([first, large, small]) == [first, large]
    assert Room(3).fitting([first, large, small]) == [first]
    assert Room(3).fitting([large, small]) == [large]
    assert Room(1).fitting([large, small]) == [large], "the first always goes on"
    assert Room().fitting([]) == []


def test_most_rows_of_a_step() -> None:
    assert methods.most_rows(Autoregressive()) == 1
    assert methods.most_rows(Lookahead(3, 4, 5)) == 25
    assert methods.most_rows(Auto(max_rows=16)) == 16 and methods.most_rows(Auto(max_rows=16, rows=40)) == 40


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    room = Room(2)
    room.check(500, 12, Autoregressive())
    assert room.most_new_tokens(500, Autoregressive()) == 12
    message = (
        r"prompt of 500 tokens and max_new_tokens=13 .* model\.kv_memory holds 512 tokens, 1 of them .* at most 12 new"
    )
    with pytest.raises(NoRoom, match=message):
        room.check(500, 13, Autoregressive())
    with pytest.raises(NoRoom, match=r"shorten the prompt, or raise model\.kv_memory"):
        room.check(600, 1, Autoregressive())
