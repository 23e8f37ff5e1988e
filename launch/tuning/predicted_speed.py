"""What the step-time curve expects of the steps that a decoder took, beside what they took. Plain arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from lp.drafting.window_size import Size
from lp.step_cost import StepTimes


@dataclass
class Steps:
    """The steps of one method, those that hold a prompt left out.

    rows, tokens: of each step's tree, and that it yielded. seconds: of all steps.
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
        """Of a step."""
        return self.seconds / len(self.rows)

    def expected_s(self, times: StepTimes) -> float:
        """Of a step, by the curve."""
        return statistics.mean(map(times.at, self.rows))

    def rows_at(self, share: float) -> int:
        """So many rows or fewer had this share of the steps."""
        return sorted(self.rows)[round(share * (len(self.rows) - 1))]


@dataclass(frozen=True)
class Speed:
    """ms: of a step. tokens_per_s: at the tokens per step that were measured. over: autoregressive steps."""

    ms: float
    tokens_per_s: float
    over: float


def speed(step_s: float, tokens_per_step: float, autoregressive_s: float) -> Speed:
    """step_s, autoregressive_s: seconds of a step, of the method and of one that yields a single token."""
    tokens_per_s = tokens_per_step / step_s
    return Speed(1000 * step_s, tokens_per_s, tokens_per_s * autoregressive_s)


def expected_tokens_per_s(size: Size) -> float | None:
    """Of steps with a window of this size, as the decoder has seen them; None if it has not tried it."""
    return size.tokens / size.seconds if size.seconds else None


def chosen(sizes: Sequence[Size]) -> Size:
    """Of windows, that with the most expected tokens per second."""
    return max(sizes, key=lambda size: expected_tokens_per_s(size) or 0.0)
