"""Draws the report's plots as SVG text, with one bar for each point. Colour alone carries no information."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from textwrap import wrap

from launch.sweep.summary import Spread, Summary

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("the report's plots need matplotlib: pip install 'lookahead-parallel[bench]'") from error

# The colours of the modes, from a palette that colour-blind readers can tell apart (Okabe and Ito).
COLORS = {"single": "#0072B2", "lp": "#D55E00", "dp": "#56B4E9", "tp": "#009E73", "pp": "#CC79A7", "lp x tp": "#E69F00"}
BASELINE_COLOR = "#888888"
MEGABYTE = 1e6
# Characters of a line of a point's name: what half a plot has room for.
LONGEST_NAME = 38

Value = Callable[[Summary], float | Spread | None]

# Title, unit and value of each bar plot.
BARS: list[tuple[str, str, Value]] = [
    ("Speed", "tokens per second", lambda s: s.tokens_per_s),
    ("Speed-up over autoregressive decoding on one rank", "ratio within a round", lambda s: s.over_autoregressive),
    ("Speed-up over transformers' generate", "ratio within a round", lambda s: s.over_generate),
    ("Tokens per step", "tokens", lambda s: s.tokens_per_step),
    ("Time in communication, waiting included", "share of the time", lambda s: s.communication_share),
    ("Time in communication, waiting included", "ms a step", lambda s: s.communication_ms_per_step),
    ("Collectives", "a step", lambda s: s.collectives_per_step),
    ("Bytes that a rank sends", "a step", lambda s: s.bytes_per_step),
    ("Weights a rank", "MB", lambda s: s.weight_bytes / MEGABYTE if s.weight_bytes is not None else None),
    ("Peak memory a rank", "MB", lambda s: s.peak_bytes / MEGABYTE if s.peak_bytes is not None else None),
]


def all_plots(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Returns the title and the SVG of each plot that has something to show."""
    measured = [summary for summary in summaries if summary.rounds]
    plots = [
        (f"{title} ({unit})", bars(measured, unit, value))
        for title, unit, value in BARS
        if any(_most(value(summary)) for summary in measured)
    ]
    with_lengths = [summary for summary in measured if summary.accepted_lengths]
    if with_lengths:
        plots.append(("Tokens that a step yields (share of steps)", accepted_lengths(with_lengths)))
    return plots


def bars(summaries: Sequence[Summary], unit: str, value: Value) -> str:
    """Draws horizontal bars from the top, with their spread over the rounds where there is one."""
    names = [wrap(summary.name, LONGEST_NAME) or [""] for summary in summaries]
    heights = [0.14 + 0.16 * len(lines) for lines in names]
    figure = Figure(figsize=(7.5, 0.9 + len(names) * max(heights)), layout="constrained")
    axes = figure.add_subplot()
    values = [value(summary) for summary in summaries]
    lengths = [v.median if isinstance(v, Spread) else v or 0.0 for v in values]
    errors = [
        [v.median - v.least if isinstance(v, Spread) else 0.0 for v in values],
        [v.most - v.median if isinstance(v, Spread) else 0.0 for v in values],
    ]
    places = range(len(summaries))
    axes.barh(places, lengths, color=[_color(s) for s in summaries], xerr=errors, ecolor="#444444", capsize=2)
    axes.set_yticks(places, ["\n".join(lines) for lines in names], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    right = max(map(_most, values), default=0.0) or 1.0
    axes.set_xlim(0, 1.15 * right)
    for place, v, length in zip(places, values, lengths, strict=True):
        end = v.most if isinstance(v, Spread) else length
        axes.annotate("-" if v is None else f"{length:.3g}" if length < 1000 else f"{length:.0f}", (end, place),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def accepted_lengths(summaries: Sequence[Summary]) -> str:
    """Draws a histogram for each point, side by side."""
    columns = min(2, len(summaries))
    rows = -(-len(summaries) // columns)
    names = [wrap(summary.name, LONGEST_NAME) for summary in summaries]
    figure = Figure(figsize=(7.5, (1.5 + 0.16 * max(map(len, names))) * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    longest = max(max(summary.accepted_lengths) for summary in summaries)
    for axes, summary, lines in zip(grid.flat, summaries, names, strict=False):
        axes.bar(list(summary.accepted_lengths), list(summary.accepted_lengths.values()), color=_color(summary))
        axes.set_title("\n".join(lines), fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0.3, longest + 0.7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(summaries) :]:
        axes.set_visible(False)
    return _svg(figure)


def _most(value: float | Spread | None) -> float:
    """The largest figure of a point; 0 if there is none."""
    return value.most if isinstance(value, Spread) else value or 0.0


def _color(summary: Summary) -> str:
    return COLORS.get(summary.mode, BASELINE_COLOR) if summary.engine == "runtime" else BASELINE_COLOR


def _svg(figure: Figure) -> str:
    """Returns the <svg> element without its metadata, so that it refers to nothing outside."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text[text.index("<svg") :]
