"""Step times: the measured curve and its JSON form, and the cost of a step on one rank or shared by several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lp.calibration.measure import bushy_tree
from lp.step_cost import StepCost, StepTimes
from lp.tree import TokenTree, chain
from parallel.runners.partition import partition

ROWS_AND_SECONDS = (1, 4, 16, 64), (0.010, 0.011, 0.015, 0.031)
TIMES = StepTimes((1, 4, 8), (0.010, 0.013, 0.021))


@pytest.mark.parametrize(
    ("rows", "seconds"), [(0, 0.010), (1, 0.010), (2, 0.011), (4, 0.013), (6, 0.017), (8, 0.021), (12, 0.029)]
)
def test_times_lie_on_a_straight_line_between_and_beyond_the_points(rows: int, seconds: float) -> None:
    assert TIMES.at(rows) == pytest.approx(seconds)
    assert TIMES.table(12)[rows] == TIMES.at(rows)


def test_more_rows_never_count_as_faster() -> None:
    noisy = StepTimes((1, 2, 4, 8), (0.5, 0.4, 0.6, 0.55))
    assert noisy.seconds == (0.5, 0.5, 0.6, 0.6)
    assert noisy.at(100) == 0.6


def test_a_flat_curve_is_the_same_for_all_rows() -> None:
    assert {StepTimes.flat().at(rows) for rows in (1, 7, 500)} == {1.0}


def test_a_single_point_stands_for_all_rows() -> None:
    assert StepTimes((4,), (0.2,)).table(6) == [0.2] * 7


def test_json_keeps_times_to_the_last_bit() -> None:
    times = StepTimes((1, 3), (1 / 3, 0.1 + 0.7), num_parts=2)
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
    assert cost.seconds[num_rows] == StepTimes(*ROWS_AND_SECONDS).at(num_rows)


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
    assert cost.seconds[largest_part(tree, num_parts)] == pytest.approx(
        StepTimes(*ROWS_AND_SECONDS).at(num_rows), rel=0.1
    )
