"""How large a lookahead window pays: sizes are tried for a stretch of steps each, and the one that yields most tokens
per second of modelled time is stayed with. The dearer a trial, the rarer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lp.drafting.pace import Pace

STRETCH = 16
"""Steps of a trial: a window needs some to fill before it yields anything."""
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
    """A window of some columns: what it has yielded, and the steps since it was last in use.

    rest: steps between its trials.
    """

    columns: int
    rest: int
    tokens: float = 0.0
    seconds: float = 0.0
    rested: int = 0

    def learn(self, tokens: int, seconds: float) -> None:
        keep = 1 - 1 / MEMORY
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds


class WindowChoice:
    """Chooses among numbers of columns, for all requests of one kind in turn."""

    def __init__(self, columns: Sequence[int], levels: int, pace: Pace):
        """columns: to choose from, ascending from 0. levels: of the window. pace: says what a step with it costs."""
        alone = pace.seconds[1]
        costs = [pace.seconds[1 + number * levels] / alone - 1 for number in columns]
        self.sizes = [
            Size(number, max(SHORTEST_REST, round(STRETCH * cost / SHARE)))
            for number, cost in zip(columns, costs, strict=True)
        ]
        self._best = max(size for size, cost in enumerate(costs) if cost <= NEARLY_FREE - 1)
        self._on_trial: int | None = None
        self._left = 0

    @property
    def columns(self) -> int:
        """Of the window of the next step."""
        return self.sizes[self._current].columns

    @property
    def _current(self) -> int:
        return self._best if self._on_trial is None else self._on_trial

    def learn(self, tokens: int, seconds: float) -> None:
        """What a step with the current size yielded, and its modelled time."""
        self.sizes[self._current].learn(tokens, seconds)
        for number, size in enumerate(self.sizes):
            size.rested = 0 if number == self._current else size.rested + 1
        self._left -= 1
        if self._left <= 0:
            self._decide()

    def _decide(self) -> None:
        """The best of those tried is stayed with, unless the trial of another is due."""
        tried = [number for number, size in enumerate(self.sizes) if size.seconds]
        self._best = max(tried, key=lambda number: self.sizes[number].tokens / self.sizes[number].seconds)
        due = [number for number, size in enumerate(self.sizes) if size.rested >= size.rest]
        self._on_trial = max(due, key=lambda number: self.sizes[number].rested) if due else None
        self._left = STRETCH if due else 0

    def state(self) -> list[object]:
        """All there is, for checksums."""
        return [self._best, self._on_trial, self._left, *self.sizes]
