"""The choice of a window: the best is stayed with, others are tried now and then, dear ones rarely."""

from __future__ import annotations

from collections import Counter

import pytest

from lp.drafting.window_size import TRIAL, WindowChoice
from lp.step_cost import StepCost, StepTimes

LEVELS = 4
COLUMNS = (0, 5, 10)
NEARLY_FREE = StepTimes((1, 128), (1.0, 1.05))
DEAR = StepTimes((1, 2, 128), (1.0, 1.5, 3.0))


def choice_by(times: StepTimes) -> WindowChoice:
    return WindowChoice(COLUMNS, LEVELS, StepCost(times, 128))


def use(choice: WindowChoice, times: StepTimes, yields: dict[int, int], num_steps: int) -> Counter[int]:
    """Steps with each number of columns, if a step yields so many tokens by the number of columns."""
    used: Counter[int] = Counter()
    while used.total() < num_steps:
        trial = choice.choose()
        columns = trial.size.columns
        while trial.num_left:
            choice.learn(trial, yields[columns], times.at(1 + columns * LEVELS))
            used[columns] += 1
    return used


def test_a_window_that_is_nearly_free_is_begun_with() -> None:
    assert choice_by(NEARLY_FREE).choose().size.columns == 10
    assert choice_by(DEAR).choose().size.columns == 0


@pytest.mark.parametrize("best", COLUMNS)
def test_the_best_comes_to_be_used_most(best: int) -> None:
    yields = {columns: 8 if columns == best else 1 for columns in COLUMNS}
    choice = choice_by(DEAR)
    use(choice, DEAR, yields, 6000)
    used = use(choice, DEAR, yields, 4000)
    assert used[best] > 0.9 * used.total()


def test_trials_of_what_yields_nothing_cost_little() -> None:
    used = use(choice_by(DEAR), DEAR, dict.fromkeys(COLUMNS, 1), 20_000)
    seconds = sum(num_steps * DEAR.at(1 + columns * LEVELS) for columns, num_steps in used.items())
    assert all(used[columns] >= TRIAL for columns in COLUMNS)
    assert seconds < 1.03 * used.total()


def test_it_notices_that_a_window_pays_again() -> None:
    choice = choice_by(DEAR)
    assert use(choice, DEAR, {0: 1, 5: 1, 10: 1}, 5000).most_common(1)[0][0] == 0
    use(choice, DEAR, {0: 1, 5: 2, 10: 9}, 5000)
    assert use(choice, DEAR, {0: 1, 5: 2, 10: 9}, 500).most_common(1)[0][0] == 10


def test_a_trial_belongs_to_one_request() -> None:
    """Steps of another request in between neither shorten it nor count as it."""
    choice = choice_by(DEAR)
    use(choice, DEAR, dict.fromkeys(COLUMNS, 1), 5000)
    while (trial := choice.choose()).size.columns == 0:
        choice.learn(trial, 1, 1.0)
    before = trial.size.tokens
    other = choice.choose()
    assert other.size is not trial.size and trial.num_left == TRIAL
    choice.learn(other, 1, 1.0)
    assert (trial.num_left, trial.size.tokens) == (TRIAL, before)
