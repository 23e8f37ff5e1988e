"""The seconds that a step takes, by the rows of its tree. They depend on the model, the machine and the mode.

They are measured once (lp/calibration/measure.py). Decoders choose by them and never by the clock, as all ranks must
choose alike.

    P measured numbers of rows, M most rows of a tree
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

# Depth of the trees that are measured: their rows form chains of this length under the root.
DEPTH = 4


@dataclass(frozen=True)
class StepTimes:
    """A measured step-time curve.

    rows: [P] ascending numbers of rows. seconds: [P] time of a step with as many rows; it never falls, as each time is
    raised to the longest time of fewer rows. num_parts: number of parts that ranks split the step's tree into.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    num_parts: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for figures that are no step times."""
        sizes = len(self.rows), len(self.seconds)
        if sizes[0] != sizes[1] or not sizes[0] or list(self.rows) != sorted(set(self.rows)) or self.rows[0] < 1:
            raise ValueError(
                f"rows {self.rows} must be ascending numbers above 0, one for each of the {sizes[1]} times"
            )
        if self.num_parts < 1:
            raise ValueError(f"num_parts={self.num_parts} must be at least 1")
        if not all(0 < value < float("inf") for value in self.seconds):
            raise ValueError(f"seconds {self.seconds} must all be above 0 and finite")
        object.__setattr__(self, "seconds", tuple(accumulate(self.seconds, max)))

    @staticmethod
    def flat() -> StepTimes:
        """A curve on which every step costs the same, so that the tokens per step alone decide."""
        return StepTimes((1,), (1.0,))

    def at(self, num_rows: int) -> float:
        """Seconds of a step of `num_rows` rows, on a straight line between the measured points and beyond the last."""
        above = bisect_left(self.rows, num_rows)
        if len(self.rows) == 1 or above == 0:
            return self.seconds[0]
        above = min(above, len(self.rows) - 1)
        (low, high), (fast, slow) = self.rows[above - 1 : above + 1], self.seconds[above - 1 : above + 1]
        return fast + (slow - fast) * (num_rows - low) / (high - low)

    def by_part(self) -> StepTimes:
        """The same times, by the rows of the largest part instead of the whole tree."""
        largest = {}
        for rows, seconds in zip(self.rows, self.seconds, strict=True):
            num_chains = -(-(rows - 1) // DEPTH)
            largest[min(rows, 1 + DEPTH * -(-num_chains // self.num_parts))] = seconds
        return StepTimes(tuple(largest), tuple(largest.values()))

    def table(self, most_rows: int) -> Sequence[float]:
        """[M + 1] seconds of steps with 0, 1, ... `most_rows` rows."""
        return [self.at(num_rows) for num_rows in range(most_rows + 1)]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "seconds": list(self.seconds), "num_parts": self.num_parts}

    @staticmethod
    def from_dict(values: Any) -> StepTimes:
        """The inverse of `to_dict`. Raises ValueError for values that are no step times."""
        try:
            rows, seconds = map(int, values["rows"]), map(float, values["seconds"])
            return StepTimes(tuple(rows), tuple(seconds), int(values["num_parts"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not step times: {error}") from error


class StepCost:
    """A step-time curve as tables for fast lookup.

    most_rows: M, most rows of a tree. num_parts: number of parts that a tree is split into. seconds: [M + 1]
    seconds[n] is the time of a step whose largest part has n rows. slopes: [M + 1] slopes[n] is a lower bound of what
    each further row costs, in seconds, however many are added to n; infinite for n = M.
    """

    def __init__(self, times: StepTimes, most_rows: int):
        self.most_rows = most_rows
        self.num_parts = times.num_parts
        self.seconds = times.by_part().table(most_rows)
        self.slopes = [
            min(
                ((self.seconds[more] - self.seconds[rows]) / (more - rows) for more in range(rows + 1, most_rows + 1)),
                default=float("inf"),
            )
            for rows in range(most_rows + 1)
        ]

    def largest_part(self, num_rows: int, depth: int) -> int:
        """About the number of rows of the largest part of a tree.

        A path cannot be split, and parts repeat the beginnings of their paths.
        """
        if self.num_parts == 1:
            return num_rows
        repeated = (self.num_parts - 1) * depth // 2
        return min(num_rows, max(depth + 1, -(-(num_rows + repeated) // self.num_parts)))
