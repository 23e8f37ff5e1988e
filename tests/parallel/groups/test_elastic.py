"""How many ranks share their steps, which group serves which request, and which requests move to another group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import pytest

from lp.methods.autoregressive import Autoregressive
from lp.request import Request
from lp.sampling.settings import Sampling
from lp.step_cost import Extras, StepTimes
from lp.text.stopping import Stopping
from parallel.groups.elastic import (
    BY_ROWS,
    CALM_S,
    LEAST_LEFT,
    MOST_BEGINNINGS,
    ROOMY,
    SAME_TOKENS,
    ElasticGroups,
    Load,
    Movable,
    Move,
    best_move,
    fitting_size,
    sizes,
    sizes_of,
)  # fmt: skip
from parallel.mesh import Mode

# As on a GPU: many rows take hardly longer than one.
FLAT = StepTimes((1, 64, 128), (10.0, 11.0, 12.0))


def request(prompt: list[int], owner: str | None = None) -> Request:
    return Request("name", prompt, Autoregressive(), Sampling(), Stopping(), owner)


def loads(*numbers: int, uncomputed: Sequence[int] = ()) -> dict[int, Load]:
    return {
        rank: Load([""] * number, tokens)
        for rank, (number, tokens) in enumerate(zip_longest(numbers, uncomputed, fillvalue=0))
    }


def test_sizes_divide_the_number_of_ranks_and_halve_where_that_can_be() -> None:
    assert [sizes(number) for number in (1, 2, 3, 4, 6, 8, 12)] == [
        [1], [2, 1], [3, 1], [4, 2, 1], [6, 3, 1], [8, 4, 2, 1], [12, 6, 3, 1],
    ]  # fmt: skip
    assert [fitting_size(wanted, 4) for wanted in (0, 1, 2, 3, 4, 9)] == [1, 1, 2, 2, 4, 4]
    assert [sizes_of(mode, 4) for mode in (Mode.auto, Mode.lp, Mode.dp)] == [[4, 2, 1], [4], [1]]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_request_for_each_rank_parts_them_at_once_and_a_calm_while_brings_them_together(num_ranks: int) -> None:
    groups = ElasticGroups(Mode.auto)

    def is_parted(num_requests: int, now: float) -> bool:
        size = groups.group_size(num_requests, num_ranks, now)
        assert size in (1, num_ranks)
        return size == 1

    assert not is_parted(num_ranks - 1, 0.0)
    assert is_parted(num_ranks, 0.1)
    assert is_parted(num_ranks, 0.2), "one for each rank is enough to stay apart"
    assert is_parted(num_ranks - 1, 0.3) and is_parted(0, 0.2 + 0.9 * CALM_S)
    assert is_parted(num_ranks, 0.2 + CALM_S) and is_parted(num_ranks - 1, 0.3 + CALM_S)
    assert not is_parted(num_ranks - 1, 0.3 + 2 * CALM_S)
    assert is_parted(num_ranks, 0.4 + 2 * CALM_S)


def test_four_ranks_halve_their_groups_step_by_step_and_double_them_at_once() -> None:
    groups = ElasticGroups(Mode.auto)
    arriving = [groups.group_size(number, 4, 0.1 * number) for number in range(9)]
    assert arriving == [4, 4, 2, 2, 1, 1, 1, 1, 1]
    leaving = [groups.group_size(number, 4, 10.0 + 0.2 * (8 - number)) for number in range(8, 0, -1)]
    assert leaving == [1] * 5 + [1, 2, 4], "from below four on, after a while"
    assert groups.group_size(8, 4, 20.0) == 1 and groups.group_size(1, 4, 21.0) == 4


@pytest.mark.parametrize(("mode", "size"), [(Mode.dp, 1), (Mode.lp, 2)])
def test_a_pinned_mode_does_not_depend_on_the_requests(mode: Mode, size: int) -> None:
    groups = ElasticGroups(mode)
    assert [groups.group_size(number, 2, time, 9.0) for time, number in enumerate([0, 1, 100, 0])] == [size] * 4


def test_groups_are_as_small_as_the_memory_for_all_requests_wants() -> None:
    groups = ElasticGroups(Mode.auto)
    assert groups.group_size(1, 4, 0.0, memory=1.0) == 4
    assert groups.group_size(1, 4, 0.1, memory=1.1) == 2
    assert groups.group_size(1, 4, 0.2, memory=2.1) == 1
    assert groups.group_size(1, 4, 10.0, memory=2.1) == 1
    assert groups.group_size(1, 4, 20.0, memory=2 * ROOMY) == 2
    assert groups.group_size(1, 4, 30.0, memory=ROOMY) == 4


def test_the_size_fits_the_ranks_that_are_there() -> None:
    groups = ElasticGroups(Mode.auto)
    assert groups.group_size(2, 4, 0.0) == 2
    assert groups.group_size(2, 3, 0.1) == 1, "two do not divide three"
    assert groups.group_size(1, 3, 10.0) == 3
    assert groups.group_size(1, 4, 10.1) == 4, "where all share their steps, new ranks do as well"


def test_a_request_goes_where_there_are_the_fewest() -> None:
    groups = ElasticGroups(Mode.auto)
    assert [groups.assign(request([number]), loads(*have)) for number, have in enumerate([(1, 0, 2), (1, 1, 1)])] == [
        1,
        0,
    ]


def test_of_those_with_the_fewest_the_one_with_the_least_to_compute_is_chosen() -> None:
    groups = ElasticGroups(Mode.auto)
    assert groups.assign(request([1]), loads(1, 1, 1, uncomputed=[30, 10, 20])) == 1
    assert groups.assign(request([1]), loads(1, 2, uncomputed=[30, 10])) == 0


def test_equal_beginnings_of_one_owner_go_to_the_same_group_while_that_is_even() -> None:
    groups = ElasticGroups(Mode.auto)
    same = list(range(SAME_TOKENS))
    assert groups.assign(request([*same, 1]), loads(2, 1)) == 1
    assert groups.assign(request([*same, 2]), loads(1, 2)) == 1
    assert groups.assign(request([*same, 2], owner="another"), loads(1, 2)) == 0
    assert groups.assign(request([*same, 3]), loads(0, 1)) == 0, "no group stays without any"
    assert groups.assign(request([*same, 4]), loads(2, 1)) == 1, "both have served one by now"
    assert groups.assign(request([*same, 5]), loads(0)) == 0, "a group may have been lost"


def test_short_prompts_go_where_there_are_the_fewest() -> None:
    groups = ElasticGroups(Mode.auto)
    for have, expected in [((2, 1), 1), ((1, 2), 0)]:
        assert groups.assign(request([7] * (SAME_TOKENS - 1)), loads(*have)) == expected


def test_only_so_many_beginnings_are_remembered() -> None:
    groups = ElasticGroups(Mode.auto)
    first = [-1] * SAME_TOKENS
    groups.assign(request(first), loads(1, 0))
    assert groups.assign(request(first), loads(1, 2)) == 1
    for number in range(MOST_BEGINNINGS):
        groups.assign(request([number] * SAME_TOKENS), loads(0, 0))
    assert groups.assign(request(first), loads(1, 2)) == 0


def test_a_request_goes_to_the_group_that_has_computed_most_of_it_while_that_is_even() -> None:
    groups = ElasticGroups(Mode.auto)
    assert groups.assign(request([1]), loads(1, 1), {0: 5, 1: 9}) == 1
    assert groups.assign(request([1]), loads(1, 2), {0: 5, 1: 9}) == 1
    assert groups.assign(request([1]), loads(1, 3), {0: 5, 1: 9}) == 0, "the other has too many"
    assert groups.assign(request([1]), loads(3, 1), {0: 5}) == 1
    assert groups.assign(request([1]), loads(1, 0), {0: 5}) == 1, "no group stays without any"
    assert groups.assign(request([1]), loads(1, 0), {0: 5}, share=2) == 0, "others are coming"
    assert groups.assign(request([1]), loads(2, 0), {0: 5}, share=2) == 1


def one(num_tokens: int, num_left: int = LEAST_LEFT, has_begun: bool = True) -> Movable:
    return Movable(f"{num_tokens} tokens", num_tokens, num_left, has_begun)


@pytest.mark.parametrize(
    ("moving", "most", "least", "moves"),
    [
        (one(300), 2, 0, False),  # 16 tokens of two would be a row faster each: 32 rows saved for 300
        (one(30), 2, 0, True),
        (one(300, num_left=200), 2, 0, True),
        (one(300, num_left=200), 3, 1, False),  # the other waits for the prompt as well
        (one(300, num_left=200), 4, 1, True),
        (one(4), 2, 1, False),
        (one(4), 1, 0, False),
        (one(300, has_begun=False), 3, 1, True),  # it must be computed in any case
    ],
)
def test_a_request_moves_if_that_saves_more_rows_than_it_costs(
    moving: Movable, most: int, least: int, moves: bool
) -> None:
    assert best_move([moving], most, least) == (moving if moves else None)


def test_where_rows_cost_little_few_requests_stay_together() -> None:
    assert best_move([one(100)], 2, 0, FLAT) is None
    assert best_move([one(100, num_left=200)], 16, 0, FLAT)


def test_the_request_that_saves_the_most_moves() -> None:
    few, many, long = one(40), one(60, num_left=60), one(600, num_left=100)
    assert best_move([few, many, long], 5, 0) == many
    assert best_move([], 5, 0) is None


def test_what_each_sequence_of_a_step_costs_counts() -> None:
    slow = StepTimes(BY_ROWS.rows, BY_ROWS.seconds, extras=Extras(sequence=9.0))
    assert best_move([one(100)], 2, 0) is None and best_move([one(100)], 2, 0, slow)


def text(most: int | None) -> Request:
    return Request("name", [1, 2, 3], Autoregressive(), Sampling(), Stopping(most))


def test_a_text_is_expected_to_go_on_for_as_long_as_it_has() -> None:
    assert Movable.of(text(None), 0) == Movable("name", 3, LEAST_LEFT, has_begun=False)
    assert Movable.of(text(None), 90) == Movable("name", 93, 90, has_begun=True)
    assert Movable.of(text(100), 90).num_left == 10


def test_moves_go_from_the_most_to_the_fewest_until_no_other_is_worth_it() -> None:
    groups = ElasticGroups(Mode.auto)
    serving = {0: Load(["a", "b", "c", "d", "e"]), 2: Load(), 4: Load(["f"])}
    movable = [Movable(name, 4, LEAST_LEFT, has_begun=True) for name in "bcde"]
    assert groups.moves(serving, movable) == [Move("b", 0, 2), Move("c", 0, 2), Move("d", 0, 4)]
    assert groups.moves(serving, []) == []
