"""Step times: a curve that never falls, asked between and beyond what was measured, and its way to a file and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lp.step_cost import StepTimes

TIMES = StepTimes((1, 4, 8), (0.010, 0.013, 0.021))


@pytest.mark.parametrize(
    ("rows", "seconds"), [(0, 0.010), (1, 0.010), (2, 0.011), (4, 0.013), (6, 0.017), (8, 0.021), (12, 0.029)]
)
def test_between_and_beyond_lies_a_straight_line(rows: int, seconds: float) -> None:
    assert TIMES.at(rows) == pytest.approx(seconds)
    assert TIMES.table(12)[rows] == TIMES.at(rows)


def test_more_rows_never_count_as_faster() -> None:
    noisy = StepTimes((1, 2, 4, 8), (0.5, 0.4, 0.6, 0.55))
    assert noisy.seconds == (0.5, 0.5, 0.6, 0.6)
    assert noisy.at(100) == 0.6


def test_flat_is_the_same_for_all() -> None:
    assert {StepTimes.flat().at(rows) for rows in (1, 7, 500)} == {1.0}


def test_one_measured_number_of_rows_stands_for_all() -> None:
    assert StepTimes((4,), (0.2,)).table(6) == [0.2] * 7


def test_a_file_keeps_it_to_the_last_bit() -> None:
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
def test_what_is_no_curve_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="not step times"):
        StepTimes.from_dict({"num_parts": 1, **values} if isinstance(values, dict) else values)


def test_a_curve_that_does_not_say_its_parts_is_refused() -> None:
    """As kept by earlier versions."""
    with pytest.raises(ValueError, match="not step times"):
        StepTimes.from_dict({"rows": [1], "seconds": [0.1]})


@pytest.mark.parametrize(("num_parts", "rows"), [(1, (1, 4, 9, 33)), (2, (1, 4, 5, 17)), (4, (1, 4, 5, 9))])
def test_the_rows_of_the_largest_part_are_those_of_chains_shared_out(num_parts: int, rows: tuple[int, ...]) -> None:
    times = StepTimes((1, 4, 9, 33), (0.1, 0.2, 0.3, 0.4), num_parts)
    assert times.by_part() == StepTimes(rows, (0.1, 0.2, 0.3, 0.4))
