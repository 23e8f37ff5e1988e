"""Compares the time that steps should take by the step-time curve with the time that they took, in tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.table import Table

from lp.drafting.account import Size
from lp.methods.registry import BASELINE
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


def curve(times: StepTimes) -> Table:
    """Shows the time of a step by the rows of its tree."""
    table = _table("time of a step", "rows", "ms", "rows per ms", "over one row")
    for rows, seconds in zip(times.rows, times.seconds, strict=True):
        table.add_row(
            str(rows), f"{1000 * seconds:.2f}", f"{rows / seconds / 1000:.1f}", f"{seconds / times.at(1):.2f}x"
        )
    return table


def rows_chosen(steps: Steps) -> str:
    few, median, many = (steps.rows_at(share) for share in (0.1, 0.5, 0.9))
    mean = f"{steps.rows_per_step:.0f} per step on average"
    return f"rows chosen: {mean} (median {median}, from {few} to {many} in 80% of steps)"


def windows(sizes: Sequence[Size], levels: int) -> Table:
    """Shows the window sizes among which the decoder chose."""
    table = _table(f"window of {levels} levels", "columns", "rows", "expected tokens/s", "")
    best = chosen(sizes)
    for size in sizes:
        expected = expected_tokens_per_s(size)
        table.add_row(
            str(size.columns),
            str(size.columns * levels),
            "not tried" if expected is None else f"{expected:.0f}",
            "chosen" if size is best else "",
        )
    return table


def outlook(times: StepTimes, steps: Mapping[str, Steps]) -> Table:
    """Shows the expected and the measured speed of each method.

    steps: the steps by the name of the method; BASELINE must be among them.
    """
    plain = steps[BASELINE.method]
    columns: list[list[str]] = []
    for taken in steps.values():
        expected = speed(taken.expected_s(times), taken.tokens_per_step, plain.expected_s(times))
        measured = speed(taken.measured_s, taken.tokens_per_step, plain.measured_s)
        counts = [f"{taken.rows_per_step:.1f}", f"{taken.tokens_per_step:.2f}"]
        columns += [[*counts, *_speed_cells(found)] for found in (expected, measured)]
    headings = [f"{method} {kind}" for method in steps for kind in ("expected", "measured")]
    table = _table("speed", "", *headings)
    figures = ("rows per step", "tokens per step", "ms per step", "tokens per second", "over autoregressive")
    for cells in zip(figures, *columns, strict=True):
        table.add_row(*cells)
    return table


def _speed_cells(found: Speed) -> list[str]:
    return [f"{found.ms:.2f}", f"{found.tokens_per_s:.0f}", f"{found.over:.2f}x"]


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    for heading in headings:
        table.add_column(heading.replace(" ", "\n", 1), justify="right" if heading else "left", no_wrap=True)
    return table
