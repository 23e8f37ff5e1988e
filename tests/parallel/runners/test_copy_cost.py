"""What a replica lacks is copied exactly where that costs less than computing it, and all ranks decide alike."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp.runner.runner import StepInput
from lp.step_cost import LEAST_COPIED, Extras, StepCost, StepTimes
from parallel.runners.copy_cost import NO_COPIES, Copy, CopyCost, plan_copies
from parallel.runners.shares import Shares
from parallel.runners.sharing import Sharing
from tests.parallel.runners.test_sharing import batches, check_cover, sequence, star

CHEAP = CopyCost(per_copy=2.0, per_token=0.02)
DEAR = CopyCost(per_copy=2.0, per_token=1.5)


def test_a_lag_costs_the_lesser_of_copying_and_computing() -> None:
    assert CHEAP.lag(400, 400) == 10 and CHEAP.lag(500, 400) == 110, "nobody has computed the last hundred"
    assert CHEAP.lag(LEAST_COPIED - 1, 400) == LEAST_COPIED - 1
    assert DEAR.lag(400, 400) == NO_COPIES.lag(400, 400) == 400
    assert CHEAP.lags(300, [300, 200, 0, 299]) == [0, 4, 8, 1]


def test_the_cost_follows_from_measured_times() -> None:
    curve = (1, 16, 64), (0.010, 0.012, 0.0168)  # 0.1 ms a row
    measured = StepTimes(*curve, extras=Extras(copy=2e-4, copied_token=5e-6))
    cost = CopyCost.of(measured)
    assert cost.per_copy == pytest.approx(2) and cost.per_token == pytest.approx(0.05)
    assert CopyCost.of(StepTimes(*curve)) == NO_COPIES
    assert CopyCost.of(StepTimes((1, 64), (0.01, 0.01), extras=measured.extras)) == NO_COPIES, "rows cost nothing"
    shared = StepTimes((1, 16, 64), (0.01, 0.01, 0.01), 2, StepTimes(*curve), measured.extras)
    assert CopyCost.of(shared) == cost, "one part computes what it lacks, alone"


def test_decoders_know_that_long_lags_are_copied() -> None:
    curve = (1, 64), (0.010, 0.050)
    computed = StepCost(StepTimes(*curve, 2, StepTimes(*curve)), 64)
    copied = StepCost(StepTimes(*curve, 2, StepTimes(*curve), Extras(copy=1e-3, copied_token=1e-5)), 64)
    assert copied.catch_up_s(LEAST_COPIED - 1) == computed.catch_up_s(LEAST_COPIED - 1)
    assert copied.catch_up_s(500) == pytest.approx(6e-3)
    assert copied.catch_up_s(500) < computed.catch_up_s(500)


def test_a_copy_comes_from_a_replica_that_has_all_of_it_and_sends_the_fewest() -> None:
    steps = [StepInput.of(sequence(name, 301), star(4)) for name in range(3)]
    numbers = [[300, 300, 0, 100], [0, 300, 300, 290], [300, 0, 0, 0]]
    shares = [Shares({2: range(4)}, {3: 300}), Shares({0: range(4), 3: [0, 1]}), Shares({0: range(4)}, {1: 20, 2: 10})]
    assert plan_copies(steps, numbers, shares, CHEAP) == [
        Copy(0, 0, 2, 0, 300), Copy(0, 1, 3, 100, 300), Copy(1, 2, 0, 0, 300), Copy(2, 0, 1, 0, 20),
    ]  # fmt: skip
    assert plan_copies(steps, numbers, shares, DEAR) == plan_copies(steps, numbers, shares, NO_COPIES) == []


@given(batches(), st.floats(0, 5), st.floats(0, 1.5), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_every_row_is_computed_whatever_copies_cost(
    batch: tuple[list[StepInput], list[list[int]]], per_copy: float, per_token: float, least: int
) -> None:
    steps, numbers = batch
    cost = CopyCost(per_copy, per_token, least)
    all_shares = Sharing(cost).share(steps, numbers)
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        check_cover(step, known, shares)
    assert Sharing(cost).share(steps, numbers) == all_shares
    for copy in plan_copies(steps, numbers, all_shares, cost):
        known, shares = numbers[copy.step], all_shares[copy.step]
        assert known[copy.target] == copy.begin < copy.end <= known[copy.source]
        assert copy.end <= shares.feeds.get(copy.target, steps[copy.step].num_computed)
        assert cost.rows(copy.end - copy.begin) < copy.end - copy.begin >= least
