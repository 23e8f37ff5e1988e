"""Compares the time that steps should take by the step-time curve with the time that they took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from lp.drafting.window_size import Size
from lp.step_cost import StepTimes


@dataclass
class Steps:
    """The steps of one method, without the steps that hold a prompt.

    rows: the rows of each step's tree. tokens: the tokens that each step yielded. seconds: the time of all steps.
    """

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, rows: int, tokens: int, seconds: float) -> None:
        self.rows.append(rows)
        self.tokens.append(tokens)
        self.seconds += seconds

    @property
    def tokens_per_step(self) -> float:
        return statistics.mean(self.tokens)

    @property
    def rows_per_step(self) -> float:
        return statistics.mean(self.rows)

    @property
    def measured_s(self) -> float:
        """Seconds that a step took on average."""
        return self.seconds / len(self.rows)

    def expected_s(self, times: StepTimes) -> float:
        """Seconds that a step should take on average, by the curve."""
        return statistics.mean(map(times.at, self.rows))

    def rows_at(self, share: float) -> int:
        """The number of rows that this share of the steps did not exceed."""
        return sorted(self.rows)[round(share * (len(self.rows) - 1))]


@dataclass(frozen=True)
class Speed:
    """The speed of a method.

    ms: milliseconds of a step. tokens_per_s: tokens per second, at the measured tokens per step. over: the ratio of
    tokens_per_s to that of autoregressive steps.
    """

    ms: float
    tokens_per_s: float
    over: float


def speed(step_s: float, tokens_per_step: float, autoregressive_s: float) -> Speed:
    """Returns the speed of a method.

    step_s: seconds of a step. autoregressive_s: seconds of an autoregressive step, which yields one token.
    """
    tokens_per_s = tokens_per_step / step_s
    return Speed(1000 * step_s, tokens_per_s, tokens_per_s * autoregressive_s)


def expected_tokens_per_s(size: Size) -> float | None:
    """Tokens per second that the decoder expected of this window size; None if it has not tried the size."""
    return size.tokens / size.seconds if size.seconds else None


def chosen(sizes: Sequence[Size]) -> Size:
    """The window size with the most expected tokens per second."""
    return max(sizes, key=lambda size: expected_tokens_per_s(size) or 0.0)
