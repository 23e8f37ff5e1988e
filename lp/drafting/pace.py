"""How many rows pay: expected tokens of a step against its time."""

from __future__ import annotations

from lp.step_cost import StepTimes


class Pace:
    """A step-time curve, laid out for quick questions.

    most_rows: of a tree. seconds: [L] of a step whose largest part has 0 to `most_rows` rows. slopes: [L] the least
    that each further row costs, whatever their number.
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
        """Of a tree, about: a path cannot be split, and parts repeat the beginnings of their paths."""
        if self.num_parts == 1:
            return num_rows
        repeated = (self.num_parts - 1) * depth // 2
        return min(num_rows, max(depth + 1, -(-(num_rows + repeated) // self.num_parts)))
