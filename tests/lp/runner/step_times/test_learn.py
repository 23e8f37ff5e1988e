"""Step times are learnt from served steps, on a machine that is made up."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from lp.runner.step_times.learn import OFTEN, ServedStep, StepTimesLearner, Trial, rising
from lp.step_cost import Extras, StepTimes

ROWS = (1, 2, 4, 8, 16, 32, 64)
EXTRAS = Extras(greedy_plain=-5e-4, sequence=3e-4, thousand_cached=1e-3, sampled_step=1e-3, sampled_row=1e-4)
TRUE = StepTimes(ROWS, (0.0100, 0.0106, 0.0115, 0.0135, 0.019, 0.033, 0.060), extras=EXTRAS)
# What a start beside other work may measure: one row seems to take as long as sixteen.
DISTURBED = replace(TRUE, seconds=(0.079, 0.079, 0.079, 0.079, 0.080, 0.090, 0.100))


class Machine:
    """Serves steps that take what `times` says, times `load`, with noise and pauses."""

    def __init__(self, times: StepTimes = TRUE, seed: int = 0, noise: float = 0.05):
        self.times, self.load, self.noise = times, 1.0, noise
        self.random = random.Random(seed)

    def serve(self, num_rows: int, is_plain: bool = False, num_sequences: int = 1, num_cached: int = 300) -> ServedStep:
        seconds = self.times.at(num_rows) + self.times.of_sequences(num_sequences, num_cached)
        seconds += self.times.extras.greedy_plain if is_plain else 0
        noise = math.exp(self.random.gauss(0, self.noise)) * (3 if self.random.random() < 0.02 else 1)
        return ServedStep(num_rows, True, num_sequences, num_cached, is_plain, False, self.load * seconds * noise)

    def serve_any(self) -> ServedStep:
        """A step as decode=auto mixes them."""
        return (
            self.serve(1, is_plain=True) if self.random.random() < 0.3 else self.serve(self.random.choice([3, 8, 20]))
        )


def ratio(learnt: StepTimes, num_rows: int, base: int = 8) -> float:
    """How much longer such a step takes than one of `base` rows, over how much longer it really does."""
    return learnt.at(num_rows) / learnt.at(base) / (TRUE.at(num_rows) / TRUE.at(base))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("load", [1.0, 4.0])
def test_a_disturbed_start_is_forgotten(seed: int, load: float) -> None:
    learner, machine = StepTimesLearner(DISTURBED), Machine(seed=seed)
    machine.load = load
    for _ in range(200):
        learner.learn(machine.serve_any())
    for rows in (3, 8, 20):
        assert learner.times.at(rows) * learner.load == pytest.approx(load * TRUE.at(rows), rel=0.1)
    plain = [times.at(1) + times.extras.greedy_plain for times in (learner.times, TRUE)]
    assert plain[0] * learner.load == pytest.approx(load * plain[1], rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_load_is_followed_within_twenty_steps_and_forgotten(seed: int) -> None:
    learner, machine = StepTimesLearner(TRUE), Machine(seed=seed)
    for load in (1.0, 5.0, 1.0):
        machine.load = load
        for _ in range(20):
            learner.learn(machine.serve_any())
        assert learner.load == pytest.approx(load, rel=0.15)
        for rows in ROWS[1:6]:
            assert ratio(learner.times, rows) == pytest.approx(1, rel=0.1), (
                "what steps take relative to each other stays"
            )


def test_what_was_not_seen_rises_with_rows() -> None:
    flat = replace(TRUE, seconds=(0.05,) * len(ROWS))
    learner, machine = StepTimesLearner(flat), Machine()
    for _ in range(200):
        learner.learn(machine.serve(1, is_plain=True))
        learner.learn(machine.serve(4))
    seconds = learner.times.seconds
    assert all(more > fewer for fewer, more in pairwise(seconds))


def test_steps_of_several_sequences_and_long_ones() -> None:
    wrong = replace(TRUE, extras=replace(EXTRAS, sequence=1e-4, thousand_cached=3e-3))
    learner, machine = StepTimesLearner(wrong), Machine(noise=0.02)
    for number in range(600):
        many = 1 + number % 3 * 7
        learner.learn(machine.serve(16, num_sequences=many, num_cached=many * (300 if number % 2 else 3000)))
    extras = learner.times.extras
    assert extras.sequence == pytest.approx(EXTRAS.sequence, rel=0.35)
    assert extras.thousand_cached == pytest.approx(EXTRAS.thousand_cached, rel=0.35)


def test_steps_that_are_all_alike_do_no_harm() -> None:
    """They tell no part of the host's work from another, and make every other step fade."""
    learner, machine = StepTimesLearner(TRUE), Machine()
    for number in range(40_000):
        rows = 8 if number % 4000 else number // 4000 + 9  # few steps differ, so the figures are computed anew at times
        learner.learn(machine.serve(rows)._replace(host_s=5e-4))
    for rows in (4, 9, 12, 20, 9, 4, 20, 12) * 8:
        learner.learn(machine.serve(rows)._replace(host_s=5e-4))
    extras = learner.times.extras
    assert 0 <= extras.host_step + 8 * extras.host_row < 1e-3


def test_the_hosts_own_work_is_that_of_drafts_alone() -> None:
    learner, machine = StepTimesLearner(TRUE), Machine()
    for number in range(400):
        rows = (1, 8, 32)[number % 3]
        host_s = 1e-3 if rows == 1 else 1e-3 + 4e-4 + rows * 5e-6
        pause = 10.0 if number % 50 == 49 else 0.0
        learner.learn(machine.serve(rows, is_plain=rows == 1)._replace(host_s=host_s + pause))
    extras = learner.times.extras
    assert extras.host_step == pytest.approx(4e-4, rel=0.2) and extras.host_row == pytest.approx(5e-6, rel=0.5)


def test_parts_that_rest_have_a_curve_of_their_own() -> None:
    shared = tuple(0.6 * seconds for seconds in TRUE.seconds)
    start = StepTimes(ROWS, shared, 2, TRUE, EXTRAS)
    learner, machine, both = StepTimesLearner(start, 2), Machine(), Machine(start)
    for _ in range(200):
        learner.learn(machine.serve(8)._replace(is_shared=False, seconds=2 * TRUE.at(8)))
        seconds = both.serve(1).seconds
        learner.learn(both.serve(24)._replace(seconds=start.by_part().at(start.part_rows(24)), num_rows=24))
        assert seconds > 0
    alone = learner.times.alone
    assert alone is not None
    truth = 2 * TRUE.at(8) / start.by_part().at(start.part_rows(24))
    assert alone.at(8) / learner.times.at(24) == pytest.approx(truth, rel=0.1)


def test_others_are_told_of_what_changes_decisions() -> None:
    learner, machine = StepTimesLearner(TRUE), Machine(noise=0.01)
    for _ in range(200):
        learner.learn(machine.serve_any())
    assert not learner.has_change, "these figures were right"
    machine.times = replace(TRUE, seconds=(0.010, 0.0125, 0.017, 0.026, 0.044, 0.080, 0.152))
    for _ in range(300):
        learner.learn(machine.serve_any())
    assert learner.has_change
    told = learner.take_change()
    assert told.num_steps == 500 and told.learnt_at > 0 and told.load == learner.load
    assert not learner.has_change and StepTimes.from_dict(told.to_dict()) == told


def test_trials_are_of_what_was_seldom_seen_and_end() -> None:
    learner, machine = StepTimesLearner(TRUE), Machine()
    for _ in range(50):
        learner.learn(machine.serve(8))
    tried: list[Trial] = []
    while trial := learner.next_trial():
        tried.append(trial)
        learner.learn(machine.serve(trial.num_rows, trial.is_plain))
    assert len(tried) <= (OFTEN + 1) * (len(ROWS) + 1) and Trial(8, True, False) not in tried
    assert {trial.num_rows for trial in tried} == {1, 2, 4, 16, 32, 64} and any(trial.is_plain for trial in tried)


def test_what_earlier_processes_have_tried_is_not_tried_again() -> None:
    assert StepTimesLearner(replace(TRUE, num_steps=10)).next_trial() is not None
    learner = StepTimesLearner(replace(TRUE, num_steps=1000))
    assert learner.next_trial() is None and learner.num_steps == 1000


def test_trials_are_short() -> None:
    slow = replace(TRUE, seconds=tuple(10 * seconds for seconds in TRUE.seconds))
    learner, machine = StepTimesLearner(slow), Machine(slow)
    largest = 0
    while trial := learner.next_trial():
        largest = max(largest, trial.num_rows)
        learner.learn(machine.serve(trial.num_rows, trial.is_plain))
    assert 0 < largest <= 8


def test_curves_rise() -> None:
    assert rising([1, 2, 300], [3.0, 1.0, 1.0]) == pytest.approx([3.0, 3.01, 5.99])
