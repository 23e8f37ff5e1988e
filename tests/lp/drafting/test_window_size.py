"""The choice of the window's size: the best size is used most, and the others are tried now and then."""

from __future__ import annotations

from collections import Counter

import pytest

from lp.drafting.account import TRIAL_STEPS, WindowChoice
from lp.step_cost import StepCost, StepTimes

LEVELS = 4
COLUMNS = (0, 5, 10)
NEARLY_FREE = StepTimes((1, 128), (1.0, 1.05))
EXPENSIVE = StepTimes((1, 2, 128), (1.0, 1.5, 3.0))


def choice_by(times: StepTimes) -> WindowChoice:
    return WindowChoice(COLUMNS, LEVELS, StepCost(times, 128))


def use(choice: WindowChoice, times: StepTimes, yields: dict[int, int], num_steps: int) -> Counter[int]:
    """Counts the steps with each number of columns. yields: tokens that a step yields, by its number of columns."""
    used: Counter[int] = Counter()
    trial = choice.choose()
    while used.total() < num_steps:
        columns = trial.size.columns
        while trial.num_left:
            choice.learn(trial, yields[columns], times.at(1 + columns * LEVELS))
            used[columns] += 1
        assert trial.following is not None
        trial = trial.following
    return used


def test_the_first_choice_is_the_largest_window_that_is_nearly_free() -> None:
    assert choice_by(NEARLY_FREE).choose().size.columns == 10
    assert choice_by(EXPENSIVE).choose().size.columns == 0


def test_where_the_number_of_rows_is_given_a_window_costs_the_rows_that_it_takes() -> None:
    """Ten columns take 40 of 64 rows from the drafts: they are not begun with, and they are tried rarely."""
    flat = StepTimes.flat()
    choice = WindowChoice(COLUMNS, LEVELS, StepCost(flat, 64))
    assert choice.choose().size.columns == 0
    used = use(choice, flat, yields={0: 2, 5: 2, 10: 2}, num_steps=700)
    assert used[0] > 0.97 * used.total()


@pytest.mark.parametrize("best", COLUMNS)
def test_the_best_size_is_used_most(best: int) -> None:
    yields = {columns: 8 if columns == best else 1 for columns in COLUMNS}
    choice = choice_by(EXPENSIVE)
    use(choice, EXPENSIVE, yields, 6000)
    used = use(choice, EXPENSIVE, yields, 4000)
    assert used[best] > 0.9 * used.total()


def test_trials_of_windows_that_yield_nothing_cost_little() -> None:
    used = use(choice_by(EXPENSIVE), EXPENSIVE, dict.fromkeys(COLUMNS, 1), 20_000)
    seconds = sum(num_steps * EXPENSIVE.at(1 + columns * LEVELS) for columns, num_steps in used.items())
    assert all(used[columns] >= TRIAL_STEPS for columns in COLUMNS)
    assert seconds < 1.03 * used.total()


def test_a_window_that_pays_off_again_is_noticed() -> None:
    choice = choice_by(EXPENSIVE)
    assert use(choice, EXPENSIVE, {0: 1, 5: 1, 10: 1}, 5000).most_common(1)[0][0] == 0
    use(choice, EXPENSIVE, {0: 1, 5: 2, 10: 9}, 5000)
    assert use(choice, EXPENSIVE, {0: 1, 5: 2, 10: 9}, 500).most_common(1)[0][0] == 10


def test_a_trial_belongs_to_one_request() -> None:
    """Steps of other requests in between neither shorten a trial nor count for its size."""
    choice = choice_by(EXPENSIVE)
    use(choice, EXPENSIVE, dict.fromkeys(COLUMNS, 1), 5000)
    while (trial := choice.choose()).size.columns == 0:
        choice.learn(trial, 1, 1.0)
    before = trial.size.tokens
    other = choice.choose()
    assert other.size is not trial.size and trial.num_left == TRIAL_STEPS
    choice.learn(other, 1, 1.0)
    assert (trial.num_left, trial.size.tokens) == (TRIAL_STEPS, before)
