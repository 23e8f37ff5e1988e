"""Which request moves to another rank: where clients together wait less, by what steps take."""

from __future__ import annotations

import pytest

from launch.supervisor.moving import BY_ROWS, LEAST_LEFT, Movable, best_move, ends
from lp.methods import Autoregressive
from lp.request import Request
from lp.sampling.settings import Sampling
from lp.step_cost import Extras, StepTimes
from lp.text.stopping import Stopping

# As on a GPU: many rows take hardly longer than one.
FLAT = StepTimes((1, 64, 128), (10.0, 11.0, 12.0))


def one(num_tokens: int, num_left: int = LEAST_LEFT, has_begun: bool = True) -> Movable:
    return Movable(f"{num_tokens} tokens", num_tokens, num_left, has_begun)


def request(most: int | None) -> Request:
    return Request("name", [1, 2, 3], Autoregressive(), Sampling(), Stopping(most))


def test_the_ends_are_the_ranks_with_the_most_and_the_fewest() -> None:
    assert ends({0: "abc", 1: "a", 2: "abcde"}) == (2, 1)


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


def test_a_text_is_expected_to_go_on_for_as_long_as_it_has() -> None:
    assert Movable.of(request(None), 0) == Movable("name", 3, LEAST_LEFT, has_begun=False)
    assert Movable.of(request(None), 90) == Movable("name", 93, 90, has_begun=True)
    assert Movable.of(request(100), 90).num_left == 10
