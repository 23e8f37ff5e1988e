"""The measured speed of greedy decoding.

Reads the figures of `python -m benchmarks.tokens_per_step` in benchmarks/results and measures nothing itself. Needs
matplotlib, which the extra `bench` brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.shared.result_pages import RESULTS, read_run, read_tables

GENERATE, AUTOREGRESSIVE = "transformers generate", "autoregressive"
# Names in the results, and how the chart calls them; from top to bottom.
METHODS = {
    "auto": "auto, the default",
    "prompt_lookup (5, 7)": "prompt_lookup (5, 7)",
    "lookahead (7, 5, 7)": "lookahead (7, 5, 7)",
    AUTOREGRESSIVE: "autoregressive (ours)",
    "transformers prompt lookup (10)": "transformers prompt lookup",
}
COLOURS = {"float32": "#56b4e9", "bfloat16": "#0072b2"}
INK, FAINT = "#1f2933", "#5b6770"
STYLE: Any = {
    "font.size": 9,
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "text.color": INK,
    "ytick.color": INK,
    "xtick.color": FAINT,
    "axes.edgecolor": FAINT,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lookahead",  # the same figures make the same file
}
BAR = 0.36


@dataclass(frozen=True)
class Measured:
    """One file of results. run: machine, date and command. tokens_per_s: by method."""

    dtype: str
    run: dict[str, str]
    tokens_per_s: dict[str, float]

    def speed_up(self, method: str, baseline: str) -> float:
        return self.tokens_per_s[method] / self.tokens_per_s[baseline]


def read(dtype: str) -> Measured:
    """The greedy run of the demo model in a format of numbers."""
    page = RESULTS / f"tokens_per_step-python-11m-{dtype}-T0.md"
    return Measured(dtype, read_run(page), {row["method"]: float(row["tokens/s"]) for row in read_tables(page)[0]})


def describe(measured: list[Measured]) -> str:
    """The model, the machine and the date, for the line under the chart."""
    run = measured[0].run
    dates = sorted({each.run["date"][:10] for each in measured})
    return (
        f"An 11M toy model on a CPU: {run['cpu']}, {run['threads']} threads, {' and '.join(dates)}. "
        "100 HumanEval prompts, 128 new tokens each, greedy."
    )


def draw() -> str:
    """The picture as SVG text."""
    text = StringIO()
    draw_figure().savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def draw_figure() -> Figure:
    matplotlib.rcParams.update(STYLE)
    measured = [read(dtype) for dtype in COLOURS]
    figure = Figure(figsize=(8, 3.3), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, measured, GENERATE, "Speed-up over transformers' generate")
    _panel(right, measured, AUTOREGRESSIVE, "Speed-up over our autoregressive")
    left.set_yticks(range(len(METHODS)), list(METHODS.values()))
    left.invert_yaxis()
    left.legend(frameon=False, loc="lower right", fontsize=8.5, handlelength=1.2, borderaxespad=0)
    figure.supxlabel(describe(measured), fontsize=8, color=FAINT)
    return figure


def _panel(axes: Axes, measured: list[Measured], baseline: str, title: str) -> None:
    """A pair of bars for each method, with its figure at the end, and a line at the speed of the baseline."""
    widest = 0.0
    for place, each in enumerate(measured):
        speeds = [each.speed_up(method, baseline) for method in METHODS]
        widest = max(widest, *speeds)
        lines = [line + (place - 0.5) * BAR for line in range(len(METHODS))]
        bars = axes.barh(lines, speeds, BAR, color=COLOURS[each.dtype], label=each.dtype)
        axes.bar_label(
            bars, fmt="%.2fx", padding=3, fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        )
    axes.axvline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_title(title, fontsize=9, fontweight="bold", loc="left")
    axes.set_xlim(0, 1.16 * widest)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
