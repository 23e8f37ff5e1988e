"""How many rows pay: expected tokens of a step against its time."""

from __future__ import annotations

from lp.step_times import StepTimes


class Pace:
    """A step-time curve, laid out for quick questions.

    seconds: [rows] of a step, for 0 to `most_rows` rows. slopes: [rows] the least that each further row costs, whatever
    their number.
    """

    def __init__(self, times: StepTimes, most_rows: int):
        self.most_rows = most_rows
        self.seconds = times.table(most_rows)
        self.slopes = [
            min(
                ((self.seconds[more] - self.seconds[rows]) / (more - rows) for more in range(rows + 1, most_rows + 1)),
                default=float("inf"),
            )
            for rows in range(most_rows + 1)
        ]
