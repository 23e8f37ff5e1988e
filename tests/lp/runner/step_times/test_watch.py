"""When running steps say that the measured step times are wrong."""

from __future__ import annotations

import pytest

from lp.runner.step_times.watch import FIRST_INTERVAL_S, NUM_STEPS, OVERDUE_S, StepWatch
from lp.step_cost import Extras, StepTimes

TIMES = StepTimes((1, 64), (0.010, 0.073), extras=Extras(sequence=0.001))


class Watched:
    """A watch with a clock that the test moves."""

    def __init__(self, times: StepTimes = TIMES, num_parts: int = 1):
        self.now = 100.0
        self.watch = StepWatch(times, num_parts, lambda: self.now)

    def steps(self, number: int, seconds: float, num_rows: int = 1, **more) -> None:
        for _ in range(number):
            self.watch.note(num_rows, more.get("num_sequences", 1), 0, seconds)


def test_steps_as_they_were_measured_are_no_occasion():
    watched = Watched()
    watched.steps(100, 0.012)
    watched.steps(100, 0.060, num_rows=64)
    watched.steps(100, 0.025, num_rows=4, num_sequences=4)
    assert not watched.watch.is_due(is_idle=True)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_steps_of_another_pace_are_one_when_nobody_waits(factor: float):
    watched = Watched()
    watched.steps(NUM_STEPS - 1, 0.010 * factor)
    assert not watched.watch.is_due(is_idle=True), "too few"
    watched.steps(1, 0.010 * factor)
    assert watched.watch.is_due(is_idle=True) and not watched.watch.is_due(is_idle=False)
    watched.now += OVERDUE_S + 1
    assert watched.watch.is_due(is_idle=False), "a server that is never idle measures all the same"


def test_a_busy_moment_is_forgotten():
    watched = Watched()
    watched.steps(NUM_STEPS, 0.100)
    watched.steps(NUM_STEPS, 0.010)
    watched.now += OVERDUE_S + 1
    assert not watched.watch.is_due(is_idle=True) and not watched.watch.is_due(is_idle=False)


def test_outliers_do_not_count():
    watched = Watched()
    for _ in range(20):
        watched.steps(2, 0.010)
        watched.steps(1, 5.0)
    assert not watched.watch.is_due(is_idle=True)


def test_measurements_become_rare():
    watched = Watched()
    waited = []
    for _ in range(3):
        watched.steps(NUM_STEPS, 0.100)
        begin = watched.now
        while not watched.watch.is_due(is_idle=True):
            watched.now += 1.0
        waited.append(watched.now - begin)
        assert watched.watch.measured() == pytest.approx(10)
        watched.watch.take(TIMES, 1)
    assert waited == [0.0, FIRST_INTERVAL_S, 2 * FIRST_INTERVAL_S]


def test_rows_are_shared_by_parts_unless_one_part_computes_alone():
    times = StepTimes((1, 129), (0.110, 0.510), 4, StepTimes((1, 129), (0.010, 0.410)))
    shared, alone = Watched(times, 4), Watched(times, 4)
    curve = times.by_part()
    shared.steps(NUM_STEPS, curve.at(32), num_rows=128)
    alone.steps(NUM_STEPS, 0.010, num_rows=1)
    assert not shared.watch.is_due(is_idle=True) and not alone.watch.is_due(is_idle=True)
