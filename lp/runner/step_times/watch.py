"""Compares the seconds of running steps with the measured ones, and says when those should be measured anew.

Step times that were measured while the machine was busy with something else would otherwise decide for the whole life
of a server how many rows its steps have. Knows nothing of ranks: each compares for itself, and one of them decides.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

from lp.runner.step_times.measure import LARGEST_CHANGE
from lp.step_cost import StepTimes

# A verdict needs so many steps; their median counts, so a pause or a burst of other work does not.
NUM_STEPS = 16
# Seconds from one measurement to the next at least; they double each time, as a machine whose speed changes all the
# time would otherwise be measured all the time.
FIRST_INTERVAL_S, LONGEST_INTERVAL_S = 60.0, 3600.0
# Seconds after which a server that is never idle measures between two steps.
OVERDUE_S = 60.0


class StepWatch:
    """What running steps took, compared with `times`. num_parts: parts of the runner, by which rows are shared."""

    def __init__(self, times: StepTimes, num_parts: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._interval_s = FIRST_INTERVAL_S
        self._not_before = clock()
        self.take(times, num_parts)

    def take(self, times: StepTimes, num_parts: int) -> None:
        """Compares with other step times from now on."""
        self._times = times
        self._curve = times.by_part()
        self._num_parts = num_parts
        self._ratios: deque[float] = deque(maxlen=NUM_STEPS)
        self._off_since: float | None = None

    def note(self, num_rows: int, num_sequences: int, num_cached: int, seconds: float) -> None:
        """Notes a step of so many rows and sequences with so many tokens in their caches."""
        self._ratios.append(seconds / self.expected_s(num_rows, num_sequences, num_cached))
        if len(self._ratios) == NUM_STEPS and self._off_since is None and not self._holds():
            self._off_since = self._clock()

    def expected_s(self, num_rows: int, num_sequences: int, num_cached: int) -> float:
        """The seconds that such a step should take: a lone sequence's tree is shared by all parts, or computed by one,
        whichever is faster.
        """
        trees, cached = -(-num_sequences // self._num_parts), -(-num_cached // self._num_parts)
        seconds = self._curve.at(max(1, -(-num_rows // self._num_parts)))
        if num_sequences == 1 and self._times.alone is not None:
            seconds = min(seconds, self._times.alone.at(num_rows))
        return seconds + self._times.of_sequences(trees, cached)

    def is_due(self, is_idle: bool) -> bool:
        """Whether the step times should be measured anew now. is_idle: whether nobody waits for a step."""
        now = self._clock()
        if self._off_since is None or now < self._not_before:
            return False
        if self._holds():  # something else had held the machine up, and it is over
            self._off_since = None
            return False
        return is_idle or now - self._off_since > OVERDUE_S

    def measured(self) -> float:
        """Begins to wait for the next occasion. Returns the factor by which steps took longer than was thought."""
        factor = statistics.median(self._ratios) if self._ratios else 1.0
        self._not_before = self._clock() + self._interval_s
        self._interval_s = min(LONGEST_INTERVAL_S, 2 * self._interval_s)
        return factor

    def _holds(self) -> bool:
        return 1 / LARGEST_CHANGE < statistics.median(self._ratios) < LARGEST_CHANGE
