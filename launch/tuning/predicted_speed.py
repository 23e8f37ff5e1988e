"""The time that steps should take by the step-time curve, beside the time that they took. Plain arithmetic."""

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
        """Seconds that a step took."""
        return self.seconds / len(self.rows)

    def expected_s(self, times: StepTimes) -> float:
        """Seconds that a step should take by the curve."""
        return statistics.mean(map(times.at, self.rows))

    def rows_at(self, share: float) -> int:
        """The number of rows that this share of the steps did not exceed."""
        return sorted(self.rows)[round(share * (len(self.rows) - 1))]


@dataclass(frozen=True)
class Speed:
    """The speed of a method.

    ms: the time of a step. tokens_per_s: at the measured tokens per step. over: its ratio to autoregressive steps.
    """

    ms: float
    tokens_per_s: float
    over: float


def speed(step_s: float, tokens_per_step: float, autoregressive_s: float) -> Speed:
    """step_s, autoregressive_s: the seconds of a step of the method, and of a step that yields a single token."""
    tokens_per_s = tokens_per_step / step_s
    return Speed(1000 * step_s, tokens_per_s, tokens_per_s * autoregressive_s)


def expected_tokens_per_s(size: Size) -> float | None:
    """Tokens per second with a window of this size, as the decoder saw it; None if it has not tried the size."""
    return size.tokens / size.seconds if size.seconds else None


def chosen(sizes: Sequence[Size]) -> Size:
    """The window size with the most expected tokens per second."""
    return max(sizes, key=lambda size: expected_tokens_per_s(size) or 0.0)
