"""When ranks share their steps, and which rank serves which request when they do not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import pytest

from launch.supervisor.dealing import CALM_S, MANY, MOST_BEGINNINGS, SAME_TOKENS, Dealer, Division, Load
from lp.methods import Autoregressive
from lp.request import Request
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping
from parallel.degrees import Mode


def request(prompt: list[int], owner: str | None = None) -> Request:
    return Request("name", prompt, Autoregressive(), Sampling(), Stopping(), owner)


def loads(*numbers: int, uncomputed: Sequence[int] = ()) -> dict[int, Load]:
    return {
        rank: Load([""] * number, tokens)
        for rank, (number, tokens) in enumerate(zip_longest(numbers, uncomputed, fillvalue=0))
    }


def test_many_requests_divide_the_ranks_at_once_and_a_calm_while_brings_them_together() -> None:
    division = Division(Mode.auto)
    assert not division.is_wanted(MANY * 3 - 1, 3, 0.0)
    assert division.is_wanted(MANY * 3, 3, 0.1)
    assert division.is_wanted(3, 3, 0.2), "one for each rank is enough to stay divided"
    assert division.is_wanted(2, 3, 0.3) and division.is_wanted(0, 3, 0.2 + 0.9 * CALM_S)
    assert division.is_wanted(3, 3, 0.2 + CALM_S) and division.is_wanted(2, 3, 0.3 + CALM_S)
    assert not division.is_wanted(2, 3, 0.3 + 2 * CALM_S)
    assert not division.is_wanted(3, 3, 0.4 + 2 * CALM_S)


@pytest.mark.parametrize(("mode", "wanted"), [(Mode.dp, True), (Mode.lp, False)])
def test_a_pinned_mode_does_not_depend_on_the_requests(mode: Mode, wanted: bool) -> None:
    division = Division(mode)
    assert [division.is_wanted(number, 2, time) for time, number in enumerate([0, 1, 100, 0])] == [wanted] * 4


def test_a_request_goes_where_there_are_the_fewest() -> None:
    dealer = Dealer()
    assert [dealer.choose(request([number]), loads(*have)) for number, have in enumerate([(1, 0, 2), (1, 1, 1)])] == [
        1,
        0,
    ]


def test_of_those_with_the_fewest_the_one_with_the_least_to_compute_is_chosen() -> None:
    dealer = Dealer()
    assert dealer.choose(request([1]), loads(1, 1, 1, uncomputed=[30, 10, 20])) == 1
    assert dealer.choose(request([1]), loads(1, 2, uncomputed=[30, 10])) == 0


def test_equal_beginnings_of_one_owner_go_to_the_same_rank_while_that_is_even() -> None:
    dealer = Dealer()
    same = list(range(SAME_TOKENS))
    assert dealer.choose(request([*same, 1]), loads(2, 1)) == 1
    assert dealer.choose(request([*same, 2]), loads(1, 2)) == 1
    assert dealer.choose(request([*same, 2], owner="another"), loads(1, 2)) == 0
    assert dealer.choose(request([*same, 3]), loads(0, 1)) == 0, "no rank stays without any"
    assert dealer.choose(request([*same, 4]), loads(2, 1)) == 1, "both have served one by now"
    assert dealer.choose(request([*same, 5]), loads(0)) == 0, "a rank may have been lost"


def test_short_prompts_go_where_there_are_the_fewest() -> None:
    dealer = Dealer()
    for have, expected in [((2, 1), 1), ((1, 2), 0)]:
        assert dealer.choose(request([7] * (SAME_TOKENS - 1)), loads(*have)) == expected


def test_only_so_many_beginnings_are_remembered() -> None:
    dealer = Dealer()
    first = [-1] * SAME_TOKENS
    dealer.choose(request(first), loads(1, 0))
    assert dealer.choose(request(first), loads(1, 2)) == 1
    for number in range(MOST_BEGINNINGS):
        dealer.choose(request([number] * SAME_TOKENS), loads(0, 0))
    assert dealer.choose(request(first), loads(1, 2)) == 0


def test_a_request_goes_to_the_rank_that_has_computed_most_of_it_while_that_is_even() -> None:
    dealer = Dealer()
    assert dealer.choose(request([1]), loads(1, 1), {0: 5, 1: 9}) == 1
    assert dealer.choose(request([1]), loads(1, 2), {0: 5, 1: 9}) == 1
    assert dealer.choose(request([1]), loads(1, 3), {0: 5, 1: 9}) == 0, "the other has too many"
    assert dealer.choose(request([1]), loads(3, 1), {0: 5}) == 1
    assert dealer.choose(request([1]), loads(1, 0), {0: 5}) == 1, "no rank stays without any"
    assert dealer.choose(request([1]), loads(1, 0), {0: 5}, share=2) == 0, "others are coming"
    assert dealer.choose(request([1]), loads(2, 0), {0: 5}, share=2) == 1
