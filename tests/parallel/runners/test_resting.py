"""When ranks share a step, and when all but one of them rest."""

from __future__ import annotations

import pytest

from lp.step_cost import StepCost, StepTimes
from parallel.runners.resting import Resting

ROWS = (1, 2, 8, 16, 32, 64)
# One part computes small trees faster, as two that read the same memory hinder each other.
ALONE = StepTimes(ROWS, (0.041, 0.056, 0.066, 0.080, 0.111, 0.165))
SHARED = StepTimes(ROWS, (0.052, 0.060, 0.066, 0.070, 0.085, 0.115), 2, ALONE)
COST = StepCost(SHARED, 64)


def begun(cost: StepCost = COST) -> Resting:
    """After the first step."""
    resting = Resting(cost)
    resting.choose(1, 0)
    assert resting.is_shared
    resting.accepted(1)
    return resting


@pytest.mark.parametrize(("num_rows", "is_shared"), [(1, False), (2, False), (4, False), (16, True), (64, True)])
def test_the_faster_of_both_is_taken(num_rows: int, is_shared: bool) -> None:
    resting = begun()
    resting.choose(num_rows, depth=2)
    assert resting.is_shared is is_shared is (COST.shared_s(num_rows, 2) <= COST.alone_s(num_rows))


def test_ranks_never_rest_where_sharing_takes_no_longer() -> None:
    cost = StepCost(StepTimes(ROWS, ALONE.seconds, 2, ALONE), 64)
    resting = begun(cost)
    for num_rows in (1, 2, 16, 1, 64):
        resting.choose(num_rows, depth=min(3, num_rows - 1))
        assert resting.is_shared
        resting.accepted(1)
    resting.choose(1, 0)
    assert resting.is_shared


def test_ranks_always_share_where_nothing_is_known_of_resting() -> None:
    resting = begun(StepCost(StepTimes(ROWS, ALONE.seconds, 2), 64))
    resting.choose(1, 0)
    assert resting.is_shared


def test_plain_steps_are_computed_by_one_part() -> None:
    resting = Resting(COST)
    resting.choose(1, 0)
    assert resting.is_shared, "every rank computes the prompt"
    resting.accepted(1)
    resting.choose(1, 0)
    assert not resting.is_shared


def test_plain_steps_that_sharing_slows_a_little_are_soon_computed_by_one_part() -> None:
    """The curve has 2 ms more for a plain step that is shared, and about 3 ms for a token that ranks lack."""
    times = StepTimes(ROWS, (0.043, 0.049, 0.066, 0.090, 0.130, 0.210), 2, ALONE)
    cost = StepCost(times, 64)
    resting, num_shared = begun(cost), 0
    assert 0 < cost.shared_s(1, 0) - cost.alone_s(1) < cost.catch_up_s(1)
    resting.choose(1, 0)
    while resting.is_shared:
        resting.accepted(1)
        num_shared += 1
        assert num_shared < 10
        resting.choose(1, 0)
    assert num_shared >= 1


def test_sharing_waits_until_it_could_have_saved_what_catching_up_costs() -> None:
    resting = begun()
    for _ in range(100):
        resting.choose(1, 0)
        resting.accepted(1)
    num_alone = 0
    resting.choose(32, 3)
    while not resting.is_shared:
        resting.accepted(2)
        num_alone += 1
        assert num_alone < 40
        resting.choose(32, 3)
    saved, caught_up = COST.alone_s(32) - COST.shared_s(32, 3), COST.catch_up_s(100)
    assert num_alone > 1 and saved * num_alone > 0.9 * (caught_up - saved)
    resting.accepted(2)
    assert resting.catch_up_s == 0.0
    resting.choose(32, 3)
    assert resting.is_shared


def test_a_short_rest_delays_sharing_little() -> None:
    resting = begun()
    resting.choose(1, 0)
    resting.accepted(1)
    resting.choose(32, 3)
    assert resting.is_shared


def test_the_more_tokens_ranks_lack_the_longer_they_catch_up() -> None:
    costs = [COST.catch_up_s(num_tokens) for num_tokens in (0, 1, 4, 16, 64, 500)]
    assert costs == sorted(costs) and costs[0] == 0 and costs[-1] > 0.5
