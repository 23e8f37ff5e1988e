"""Tables for the terminal: the step-time curve, the sizes chosen by it, and the resulting speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.table import Table

from launch.tuning.predicted_speed import Speed, Steps, chosen, expected_tokens_per_s, speed
from lp.drafting.window_size import Size
from lp.methods import Autoregressive
from lp.step_cost import StepTimes


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

    steps: the steps by the name of the method; Autoregressive must be among them.
    """
    plain = steps[Autoregressive.method]
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
