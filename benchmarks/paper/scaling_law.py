"""Measures how tokens per step grow with the window, the n-gram size and the guesses.

    python -m benchmarks.paper.scaling_law --prompts prompts.jsonl --limit 20

Decodes greedily at each window W, n-gram size N and number of guesses G, with G = W unless --guesses says otherwise.
The plot shows tokens per step against the logarithm of the rows of a step, and the paper's formula
(benchmarks/paper/formula.py) is fitted to the points with W = G. Only the window feeds the pool, as the formula
supposes; --sources can add the prompt and the generated text.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from benchmarks.paper.formula import FormulaFit, fit, step_compression
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, MethodTotals
from benchmarks.shared.greedy import check_methods, compare_on_prompts
from benchmarks.shared.options import make_prompts_parser, parse
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import markdown_table, publish
from lp import Autoregressive, Lookahead
from lp.model.checkpoint import DTYPES
from lp.request import DecodingMethod

SOURCES = ("window", "prompt", "generated")


@dataclass(frozen=True)
class ScalingPoint:
    """Tokens and rows per step at one setting."""

    window: int
    ngram: int
    guesses: int
    tokens_per_step: float
    rows_per_step: float


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    methods: dict[str, DecodingMethod] = {AUTOREGRESSIVE: Autoregressive(), **make_methods(arguments)}
    check_methods(parser, methods.values())
    comparison = compare_on_prompts(arguments, methods)
    totals = {name: total for name, total in comparison.totals.items() if name != AUTOREGRESSIVE}
    points = [point_of(methods[name], total) for name, total in totals.items()]
    fits = fit_all(points)
    name, sources = comparison.engine.checkpoint.name, "+".join(arguments.sources)
    publish(
        arguments.output,
        f"scaling_law-{name}-{arguments.dtype}-{sources}",
        f"Scaling law of lookahead decoding: {name}, n-grams of the {sources.replace('+', ' + ')}",
        describe(points, fits, comparison.num_prompts, arguments.max_new_tokens),
        {"points": [asdict(point) for point in points], "fits": {key: asdict(one) for key, one in fits.items()}},
        plot(points, fits.get("all")),
    )
    comparison.demand_same_texts()


def make_arguments() -> argparse.ArgumentParser:
    parser = make_prompts_parser(__doc__)
    parser.set_defaults(limit=20)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    windows = [1, 3, 5, 7, 10, 15, 30, 60]
    parser.add_argument(
        "--windows", type=int, nargs="+", default=windows, metavar="W", help="default 1 3 5 7 10 15 30 60"
    )
    parser.add_argument("--ngrams", type=int, nargs="+", default=[3, 5, 8], metavar="N", help="default 3 5 8")
    parser.add_argument(
        "--guesses", type=int, nargs="+", metavar="G", help="numbers of guesses for each W (default: the same as W)"
    )
    parser.add_argument(
        "--sources", nargs="+", default=["window"], choices=SOURCES, help="what feeds the pool (default window)"
    )
    return parser


def make_methods(arguments: argparse.Namespace) -> dict[str, DecodingMethod]:
    """Lookahead decoding at each setting, by the name "(W, N, G)"."""
    feeds = {f"{source}_drafts": source in arguments.sources for source in SOURCES}
    return {
        f"({window}, {ngram}, {guesses})": Lookahead(window, ngram, guesses, **feeds)
        for ngram in arguments.ngrams
        for window in arguments.windows
        for guesses in arguments.guesses or [window]
    }


def point_of(decode: DecodingMethod, total: MethodTotals) -> ScalingPoint:
    assert isinstance(decode, Lookahead)
    return ScalingPoint(decode.window, decode.ngram, decode.guesses, total.tokens_per_step, total.rows_per_step)


def balanced(points: Sequence[ScalingPoint]) -> list[ScalingPoint]:
    """The points with W = G, for which the formula holds."""
    return [point for point in points if point.window == point.guesses]


def fit_all(points: Sequence[ScalingPoint]) -> dict[str, FormulaFit]:
    """Fits to the points with W = G: to all of them, under "all", and to each n-gram size's where there are enough."""
    sets = {"all": balanced(points)}
    for ngram in sorted({point.ngram for point in points}):
        sets[f"N = {ngram}"] = [point for point in balanced(points) if point.ngram == ngram]
    fits = {}
    for name, some in sets.items():
        if len(some) >= 3:
            speculations, lengths = [point.window for point in some], [point.ngram - 1 for point in some]
            fits[name] = fit(speculations, lengths, [point.tokens_per_step for point in some])
    return fits


def predicted(point: ScalingPoint, law: FormulaFit) -> float:
    """Tokens per step by the fitted formula."""
    return float(step_compression(law.alpha, law.f, point.window, point.ngram - 1))


def describe(points: Sequence[ScalingPoint], fits: dict[str, FormulaFit], num_prompts: int, max_new_tokens: int) -> str:
    law = fits.get("all")
    rows: list[tuple[Any, ...]] = [
        (
            point.ngram,
            point.window,
            point.guesses,
            f"{point.rows_per_step:.1f}",
            f"{point.tokens_per_step:.3f}",
            f"{1 - 1 / point.tokens_per_step:.1%}",
            f"{predicted(point, law):.3f}" if law and point.window == point.guesses else "-",
        )
        for point in points
    ]
    parts = [
        f"{num_prompts} prompts, up to {max_new_tokens} new tokens each, greedy. Steps saved: as a share of the steps "
        "that autoregressive decoding takes. Fitted: the paper's formula, for W = G.",
        markdown_table(["N", "W", "G", "rows/step", "tokens/step", "steps saved", "fitted"], rows, num_text=0),
    ]
    if fits:
        fitted = [
            (name, f"{one.alpha:.3f}", f"{one.f:.3f}", f"{one.residual:.3f}", f"{one.largest:.3f}")
            for name, one in fits.items()
        ]
        columns = ["points with W = G", "alpha", "f", "residual (root mean square)", "largest"]
        parts += [
            "S = (f - 1 + E) / f, where E is for b = W = G speculations of N - 1 tokens:",
            markdown_table(columns, fitted),
        ]
    return "\n\n".join(parts)


def plot(points: Sequence[ScalingPoint], law: FormulaFit | None) -> Figure:
    """Tokens per step against rows per step: measured points, and a line of the fitted formula for each N."""
    figure, (axes,) = make_axes()
    for number, ngram in enumerate(sorted({point.ngram for point in points})):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        shown = sorted((p for p in points if p.ngram == ngram), key=lambda point: point.rows_per_step)
        rows, tokens = [point.rows_per_step for point in shown], [point.tokens_per_step for point in shown]
        axes.plot(rows, tokens, marker, color=colour, label=f"N = {ngram}")
        if law and (diagonal := balanced(shown)):
            fitted = [predicted(point, law) for point in diagonal]
            axes.plot([point.rows_per_step for point in diagonal], fitted, color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("rows per step (logarithmic)")
    axes.set_ylabel("tokens per step")
    title = "points: measured"
    if law:
        title += f"; lines: the paper's formula with α = {law.alpha:.3f}, f = {law.f:.2f}"
    axes.set_title(title)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
