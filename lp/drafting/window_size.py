"""How large a lookahead window pays: sizes are tried for a trial of steps each, and the one that yields most tokens
per second of modelled time is stayed with. The dearer a trial, the rarer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lp.step_cost import StepCost

TRIAL = 16
"""Steps of a trial: a window needs some to fill before it yields anything."""
STAY = 4
"""Steps for which a choice holds that is no trial."""
SHARE = 0.007
"""What trials of one size may cost of the time, should the window yield nothing."""
SHORTEST_REST = 64
"""Steps between two trials of a size that costs nothing."""
MEMORY = 128.0
"""Steps after which what a size has yielded counts a third of what it yields now."""
NEARLY_FREE = 1.1
"""A step with a window that is slower than one without by no more than this is begun with."""


@dataclass
class Size:
    """A window of some columns: what it has yielded, and the last step that it was in use.

    rest: least number of steps between its trials.
    """

    columns: int
    rest: int
    tokens: float = 0.0
    seconds: float = 0.0
    last_used: int = 0

    @property
    def speed(self) -> float:
        """Tokens per modelled second; 0 before it was tried."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        keep = 1 - 1 / MEMORY
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds


@dataclass
class WindowTrial:
    """Steps in a row of one request for which a size was chosen, so that its window has the time to fill."""

    size: Size
    num_left: int


class WindowChoice:
    """Chooses among numbers of columns, for all requests of one kind: what one of them tries, all learn from."""

    def __init__(self, columns: Sequence[int], levels: int, cost: StepCost):
        """columns: to choose from, ascending from 0. levels: of the window. cost: says what a step with it costs."""
        parts = [cost.largest_part(1 + number * levels, number and number + levels - 1) for number in columns]
        costs = [cost.seconds[part] / cost.seconds[1] - 1 for part in parts]
        self.sizes = [
            Size(number, max(SHORTEST_REST, round(TRIAL * cost / SHARE)))
            for number, cost in zip(columns, costs, strict=True)
        ]
        self._best = max(
            (size for size, cost in zip(self.sizes, costs, strict=True) if cost <= NEARLY_FREE - 1),
            key=lambda size: size.columns,
        )
        self._num_steps = 0

    def choose(self) -> WindowTrial:
        """What a request does next: the size that has yielded most, unless the trial of another is due."""
        self._best = max(self.sizes, key=lambda size: (size.speed, size is self._best))
        due = [size for size in self.sizes if self._num_steps - size.last_used >= self._rest(size)]
        if not due:
            return WindowTrial(self._best, STAY)
        trial = min(due, key=lambda size: size.last_used)
        trial.last_used = self._num_steps  # no second request is to try it at the same time
        return WindowTrial(trial, TRIAL)

    def _rest(self, size: Size) -> float:
        """Steps between its trials: the more it falls behind the best, the more of them."""
        if size is self._best:
            return float("inf")
        behind = 1 - size.speed / self._best.speed if size.speed else 0.0
        return max(size.rest, TRIAL * behind / SHARE)

    def learn(self, trial: WindowTrial, tokens: int, seconds: float) -> None:
        """What a step of a trial yielded, and its modelled time."""
        self._num_steps += 1
        trial.num_left -= 1
        trial.size.last_used = self._num_steps
        trial.size.learn(tokens, seconds)

    def state(self) -> list[object]:
        """All there is, for checksums."""
        return [self._best.columns, self._num_steps, *self.sizes]
