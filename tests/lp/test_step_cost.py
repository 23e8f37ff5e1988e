"""Step times: the measured curve and its JSON form, and the cost of a step on one rank or shared by several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lp.runner.step_times.measure import bushy_tree
from lp.step_cost import CACHED, Extras, StepCost, StepTimes
from lp.tree import TokenTree, chain
from parallel.runners.partition import partition

ROWS_AND_SECONDS = (1, 4, 16, 64), (0.010, 0.011, 0.015, 0.031)
TIMES = StepTimes((1, 4, 8), (0.010, 0.013, 0.021))


@pytest.mark.parametrize(
    ("rows", "seconds"), [(0, 0.010), (1, 0.010), (2, 0.011), (4, 0.013), (6, 0.017), (8, 0.021), (12, 0.029)]
)
def test_times_lie_on_a_straight_line_between_and_beyond_the_points(rows: int, seconds: float) -> None:
    assert TIMES.at(rows) == pytest.approx(seconds)


def test_more_rows_never_count_as_faster() -> None:
    noisy = StepTimes((1, 2, 4, 8), (0.5, 0.4, 0.6, 0.55))
    assert noisy.seconds == (0.5, 0.5, 0.6, 0.6)
    assert noisy.at(100) == 0.6


def test_a_flat_curve_is_the_same_for_all_rows() -> None:
    assert {StepTimes.flat().at(rows) for rows in (1, 7, 500)} == {1.0}


def test_a_single_point_stands_for_all_rows() -> None:
    assert {StepTimes((4,), (0.2,)).at(rows) for rows in range(7)} == {0.2}


def test_json_keeps_times_to_the_last_bit() -> None:
    extras = Extras(0.1 + 0.2, 1 / 7, 0.0, 1e-9, -1 / 3, 0.5, 1 / 9, 2 / 7)
    times = StepTimes((1, 3), (1 / 3, 0.1 + 0.7), 2, StepTimes((1,), (2 / 3,)), extras)
    assert StepTimes.from_dict(json.loads(json.dumps(times.to_dict()))) == times


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "rows",
        7,
        {},
        {"rows": [1]},
        {"rows": [], "seconds": []},
        {"rows": [1, 2], "seconds": [0.1]},
        {"rows": [2, 1], "seconds": [0.1, 0.2]},
        {"rows": [1, 1], "seconds": [0.1, 0.2]},
        {"rows": [0], "seconds": [0.1]},
        {"rows": [float("inf")], "seconds": [0.1]},
        {"rows": ["many"], "seconds": [0.1]},
        {"rows": None, "seconds": [0.1]},
        {"rows": [1], "seconds": [0.1], "num_parts": None},
        {"rows": [1], "seconds": [0.1], "num_parts": 0},
        {"rows": [1], "seconds": [0.0]},
        {"rows": [1], "seconds": [-0.1]},
        {"rows": [1], "seconds": [float("nan")]},
        {"rows": [1], "seconds": [float("inf")]},
        {"rows": [1], "seconds": [None]},
        {"rows": [1], "seconds": [0.1], "alone": {"rows": [1]}},
        {"rows": [1], "seconds": [0.1], "alone": "rows"},
        {"rows": [1], "seconds": [0.1], "extras": {"host_row": -0.1}},
        {"rows": [1], "seconds": [0.1], "extras": {"host_row": float("nan")}},
        {"rows": [1], "seconds": [0.1], "extras": {"sequence": -0.1}},
        {"rows": [1], "seconds": [0.1], "extras": {"thousand_cached": float("inf")}},
        {"rows": [1], "seconds": [0.1], "extras": {"unknown": 0.1}},
        {"rows": [1], "seconds": [0.1], "extras": [0.1]},
    ],
)
def test_values_that_are_no_curve_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="not step times"):
        StepTimes.from_dict({"num_parts": 1, **values} if isinstance(values, dict) else values)


def test_a_curve_without_num_parts_is_refused() -> None:
    """Earlier versions wrote such files."""
    with pytest.raises(ValueError, match="not step times"):
        StepTimes.from_dict({"rows": [1], "seconds": [0.1]})


@pytest.mark.parametrize(("num_parts", "rows"), [(1, (1, 4, 9, 33)), (2, (1, 4, 5, 17)), (4, (1, 4, 5, 9))])
def test_rows_of_the_largest_part(num_parts: int, rows: tuple[int, ...]) -> None:
    times = StepTimes((1, 4, 9, 33), (0.1, 0.2, 0.3, 0.4), num_parts)
    assert times.by_part() == StepTimes(rows, (0.1, 0.2, 0.3, 0.4))


def largest_part(tree: TokenTree, num_parts: int) -> int:
    """Rows of the largest part into which the tree is really split."""
    return max(map(len, partition(tree, num_parts)))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 40, 64])
def test_one_rank_computes_the_whole_tree(num_rows: int) -> None:
    cost = StepCost(StepTimes(*ROWS_AND_SECONDS), 64)
    assert {cost.largest_part(num_rows, depth) for depth in range(num_rows)} == {num_rows}
    assert cost.step_s(num_rows, 0) == StepTimes(*ROWS_AND_SECONDS).at(num_rows)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_a_chain_costs_each_rank_all_of_its_rows(num_parts: int) -> None:
    cost = StepCost(StepTimes(*ROWS_AND_SECONDS, num_parts), 64)
    for length in (1, 2, 9, 30):
        assert cost.largest_part(length, length - 1) == largest_part(chain([0] * length), num_parts) == length


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [16, 32, 64])
def test_a_bushy_tree_is_shared(num_rows: int, num_parts: int) -> None:
    cost = StepCost(StepTimes(*ROWS_AND_SECONDS, num_parts), 64)
    tree = bushy_tree(0, num_rows, 100)
    modelled = cost.largest_part(num_rows, int(tree.depths.max()))
    assert modelled == pytest.approx(largest_part(tree, num_parts), abs=3)
    assert cost.step_s(num_rows, int(tree.depths.max())) == pytest.approx(
        StepTimes(*ROWS_AND_SECONDS).at(num_rows), rel=0.15
    )


def test_extras_are_added_to_the_curve() -> None:
    times = StepTimes(*ROWS_AND_SECONDS, extras=Extras(0.5, 0.1, 0.25, 0.01, -0.001, 0.003))
    greedy, sampled = StepCost(times, 64), StepCost(times, 64, is_sampled=True)
    assert greedy.step_s(4, 1) == pytest.approx(0.011 + 0.5 + 4 * 0.1)
    assert sampled.step_s(4, 1) == pytest.approx(0.011 + 0.5 + 4 * 0.1 + 0.25 + 4 * 0.01)
    assert (greedy.plain_s, sampled.plain_s) == pytest.approx((0.009, 0.013))


def test_the_host_works_on_all_rows_of_a_shared_tree_and_a_rank_samples_its_own() -> None:
    extras = Extras(host_row=0.1, sampled_row=0.01)
    plain = StepCost(StepTimes(*ROWS_AND_SECONDS, 2), 64)
    cost = StepCost(StepTimes(*ROWS_AND_SECONDS, 2, extras=extras), 64, is_sampled=True)
    part = cost.largest_part(33, 4)
    assert part < 25
    assert cost.step_s(33, 4) == pytest.approx(plain.step_s(33, 4) + 33 * 0.1 + part * 0.01)


def test_the_faster_of_sharing_and_resting_counts() -> None:
    alone = StepTimes((1, 64), (0.010, 0.073))
    cost = StepCost(StepTimes((1, 64), (0.020, 0.040), 2, alone), 64)
    assert cost.step_s(1, 0) == cost.alone_s(1) == cost.plain_s == 0.010
    assert cost.step_s(64, 4) == cost.shared_s(64, 4) < cost.alone_s(64)


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_no_further_row_costs_less_than_the_bound(num_parts: int) -> None:
    alone = StepTimes((1, 2, 16, 64), (0.010, 0.018, 0.020, 0.070)) if num_parts > 1 else None
    cost = StepCost(StepTimes(*ROWS_AND_SECONDS, num_parts, alone, Extras(host_row=1e-4)), 64)
    for rows in range(1, 64):
        for more in range(rows + 1, 65):
            rise = cost.step_s(more, 1) - cost.step_s(rows, 1)
            # A part holds whole rows, so that a shared tree may grow by a few at no cost.
            assert rise > (more - rows - num_parts) * cost.row_s(rows, 1) - 1e-9


def test_a_runner_of_one_part_goes_by_the_times_of_one_part() -> None:
    alone, extras = StepTimes((1, 8), (0.1, 0.2)), Extras(host_step=0.3)
    times = StepTimes((1, 8), (0.15, 0.18), 2, alone, extras)
    assert times.for_parts(1) == StepTimes((1, 8), (0.1, 0.2), extras=extras)
    assert times.for_parts(2) is times.for_parts(3) is times
    assert alone.for_parts(1) is alone


SEVERAL = StepTimes(*ROWS_AND_SECONDS, extras=Extras(sequence=0.0005, thousand_cached=0.002))


def test_sequences_and_cached_tokens_add_to_a_steps_seconds() -> None:
    assert SEVERAL.of_sequences(1) == 0
    assert SEVERAL.of_sequences(4) == pytest.approx(3 * (0.0005 + CACHED / 1000 * 0.002))
    assert SEVERAL.of_sequences(4, CACHED + 500) == pytest.approx(3 * 0.0005 + 0.001)
    assert SEVERAL.of_sequences(4, 10) == pytest.approx(3 * 0.0005), "a short cache is not a gain"


@pytest.mark.parametrize("load", [1, 2, 4, 16])
def test_alike_sequences_share_the_seconds_of_a_step(load: int) -> None:
    cost = StepCost(SEVERAL, 16, load=load)
    for rows in (1, 2, 5, 16):
        seconds = SEVERAL.at(load * rows) + SEVERAL.of_sequences(load)
        assert cost.step_s(rows, 0) == pytest.approx(seconds / load)
    assert cost.plain_s == cost.step_s(1, 0)


def test_trees_and_rows_are_not_shared_but_choosing_tokens_is() -> None:
    """One call chooses the tokens of all sequences of a step."""
    times = StepTimes(*ROWS_AND_SECONDS, extras=Extras(0.001, 0.0001, 0.002, 0.0002))
    cost = StepCost(times, 16, is_sampled=True, load=4)
    assert cost.step_s(3, 0) == pytest.approx(times.at(12) / 4 + 0.001 + 0.002 / 4 + 3 * 0.0003)
    on_two = StepTimes(*ROWS_AND_SECONDS, 2, StepTimes(*ROWS_AND_SECONDS), times.extras)
    on_two_s = StepCost(on_two, 16, is_sampled=True, load=4).step_s(3, 0)
    assert on_two_s == pytest.approx(on_two.by_part().at(6) / 4 + 0.001 + 0.0003 + 0.002 / 4 + 3 * 0.0002 / 2)


@pytest.mark.parametrize(("is_sampled", "first", "further"), [(False, -0.0008, -0.0001), (True, 0.0002, -0.0002)])
def test_a_plain_step_saves_less_for_each_further_sequence(is_sampled: bool, first: float, further: float) -> None:
    extras = Extras(
        greedy_plain=-0.0008, greedy_plain_row=-0.0001, sampled_plain=0.0002, sampled_plain_row=-0.0002
    )  # fmt: skip
    times = StepTimes(*ROWS_AND_SECONDS, extras=extras)
    for load in (1, 2, 8):
        expected = (times.at(load) + first + (load - 1) * further) / load
        assert StepCost(times, 16, is_sampled, load).plain_s == pytest.approx(expected)


@pytest.mark.parametrize(("load", "num_parts", "rows"), [(2, 4, 3), (4, 4, 6), (8, 4, 12), (16, 4, 24), (5, 4, 12)])
def test_ranks_compute_several_sequences_or_parts_of_one(load: int, num_parts: int, rows: int) -> None:
    """rows: of a rank where each sequence has six rows in a tree without depth."""
    alone = StepTimes(*ROWS_AND_SECONDS)
    times = StepTimes(*ROWS_AND_SECONDS, num_parts, alone, SEVERAL.extras)
    cost = StepCost(times, 16, load=load)
    trees = max(1, -(-load // num_parts))
    expected = (times.by_part().at(rows) + times.of_sequences(trees)) / load
    assert cost.step_s(6, 0) == pytest.approx(expected)
    assert cost.num_parts == max(1, num_parts // load) and cost.alone_s(1) == float("inf")


@pytest.mark.parametrize("load", [1, 2, 16, 64])
def test_a_draft_less_likely_than_the_least_odds_never_pays(load: int) -> None:
    cost = StepCost(SEVERAL, 16, load=load)
    assert 0 < cost.least_odds < 1
    for rows in range(1, 16):
        before, after = cost.step_s(rows, 0), cost.step_s(rows + 1, 0)
        expected = before / cost.step_s(1, 0)  # as fast as without drafts; if it is faster, drafts must be likelier
        assert (expected + 0.999 * cost.least_odds) / after < expected / before


def test_least_odds_rise_with_the_load() -> None:
    odds = [StepCost(StepTimes((1, 64), (0.010, 0.073)), 64, load=load).least_odds for load in (1, 4, 16, 64)]
    assert odds == pytest.approx([0.1, 4 / 13, 16 / 25, 64 / 73], rel=0.01)


@pytest.mark.parametrize(("seconds", "rows"), [(0.001, 1), (0.0150, 16), (0.0310, 64), (0.5, 64), (float("inf"), 64)])
def test_the_most_rows_of_a_time(seconds: float, rows: int) -> None:
    assert StepCost(StepTimes(*ROWS_AND_SECONDS), 64).rows_within(seconds) == rows
