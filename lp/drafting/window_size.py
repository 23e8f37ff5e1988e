"""Chooses the size of the lookahead window.

The size with the most tokens per modelled second is used; the others are tried now and then for some steps. The more
time a trial costs, the rarer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lp.step_cost import StepCost

# Steps of a trial. A window needs some of them to fill before it yields anything.
TRIAL_STEPS = 16
# Steps for which the best size is used before the next choice.
STEPS_BETWEEN_CHOICES = 4
# Largest share of the time that trials of one size may waste if its window yields nothing, where nothing else is said.
LARGEST_SHARE_OF_TIME = 0.007
# Least number of steps between two trials of a size, even if it costs nothing.
LEAST_STEPS_BETWEEN_TRIALS = 64
# Number of steps of a size after which a step's result counts about a third as much.
MEMORY_STEPS = 128.0
# The first choice is the largest window with which a step takes at most this many times as long as a plain step.
LARGEST_SLOWDOWN_AT_FIRST = 1.1


@dataclass
class Size:
    """A number of columns of the window and how it has done.

    steps_between_trials: least number of steps between two trials of it. tokens, seconds: what its steps have yielded
    and their modelled time, older steps counting less. last_used: number of the last step that used it.
    """

    columns: int
    steps_between_trials: int
    tokens: float = 0.0
    seconds: float = 0.0
    last_used: int = 0

    @property
    def speed(self) -> float:
        """Tokens per modelled second; 0 if the size has not been tried."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class WindowTrial:
    """A size chosen for several steps of one request, as its window needs some of them to fill.

    num_left: how many of the steps are left. following: the trial after this one, which is chosen a step before this
    one's end, so that the next step can be planned together with the learning from the last one.
    """

    size: Size
    num_left: int
    following: WindowTrial | None = None

    @property
    def next(self) -> WindowTrial | None:
        """The trial of the step after the present one; None if it has not been chosen."""
        return self if self.num_left > 1 else self.following


class WindowChoice:
    """Chooses the window's number of columns. Requests of the same kind share it and learn from each other's trials."""

    def __init__(
        self,
        columns: Sequence[int],
        levels: int,
        cost: StepCost,
        has_rivals: bool = True,
        share_of_time: float = LARGEST_SHARE_OF_TIME,
    ):
        """columns: numbers of columns to choose from, ascending from 0. levels: levels of the window, N-1. cost:
        seconds of a step by its rows. has_rivals: whether there are drafts that could use the window's rows.
        share_of_time: the most that trials of one size may waste.
        """
        self._share_of_time = share_of_time
        seconds = [cost.step_s(1 + number * levels, number and number + levels - 1) for number in columns]
        costs = [of_size / seconds[0] - 1 for of_size in seconds]
        if has_rivals and cost.is_flat:
            # All steps cost the same, for example because their number of rows is given. A window then costs the rows
            # that drafts lose.
            costs = [number * levels / cost.most_rows for number in columns]
        self.sizes = [
            Size(number, max(LEAST_STEPS_BETWEEN_TRIALS, round(TRIAL_STEPS * cost / share_of_time)))
            for number, cost in zip(columns, costs, strict=True)
        ]
        self._best = max(
            (size for size, cost in zip(self.sizes, costs, strict=True) if cost <= LARGEST_SLOWDOWN_AT_FIRST - 1),
            key=lambda size: size.columns,
        )
        self._num_steps = 0

    def choose(self) -> WindowTrial:
        """Chooses a size for a request's next steps: the best one so far, unless a trial of another is due."""
        self._best = max(self.sizes, key=lambda size: (size.speed, size is self._best))
        due = [size for size in self.sizes if self._num_steps - size.last_used >= self._steps_between_trials(size)]
        if not due:
            return WindowTrial(self._best, STEPS_BETWEEN_CHOICES)
        tried = min(due, key=lambda size: size.last_used)
        tried.last_used = self._num_steps  # so that no other request tries it at the same time
        return WindowTrial(tried, TRIAL_STEPS)

    def _steps_between_trials(self, size: Size) -> float:
        """Steps to wait between two trials of a size: the slower it is than the best one, the more of them."""
        if size is self._best:
            return float("inf")
        behind = 1 - size.speed / self._best.speed if size.speed else 0.0
        return max(size.steps_between_trials, TRIAL_STEPS * behind / self._share_of_time)

    def learn(self, trial: WindowTrial, tokens: int, seconds: float) -> None:
        """Notes the tokens that a step of a trial yielded and its modelled seconds."""
        self._num_steps += 1
        trial.num_left -= 1
        size, keep = trial.size, 1 - 1 / MEMORY_STEPS
        size.last_used = self._num_steps
        size.tokens = keep * size.tokens + tokens
        size.seconds = keep * size.seconds + seconds
        if trial.num_left == 1:
            trial.following = self.choose()

    def state(self) -> list[object]:
        """The whole state, for checksums."""
        return [self._best.columns, self._num_steps, *self.sizes]
