"""The scaling law of lookahead decoding: tokens per step against window, n-gram size and guesses.

    python -m benchmarks.scaling_law --prompts prompts.jsonl --limit 20

Greedy decoding at each W, N and G, with G = W unless --guesses says otherwise. Tokens per step are drawn against the
logarithm of the rows of a step, and the paper's formula (benchmarks/paper/formula.py) is fitted to the points with W =
G. The pool is fed by the window alone, as the formula supposes; --sources adds the prompt and the generated text.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from benchmarks.paper.formula import Fit, fit, step_compression
from benchmarks.shared.greedy import Totals, check_all, compare, demand_same_texts
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import encode, load_engine, make_parser, markdown_table, parse, publish, read_prompts
from lp import Autoregressive, Lookahead
from lp.methods import DecodeSettings
from lp.model.checkpoint import DTYPES

AUTOREGRESSIVE = "autoregressive"
SOURCES = ("window", "prompt", "generated")


@dataclass(frozen=True)
class Measured:
    """Tokens and rows of a step at one setting."""

    window: int
    ngram: int
    guesses: int
    tokens_per_step: float
    rows_per_step: float


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    methods: dict[str, DecodeSettings] = {AUTOREGRESSIVE: Autoregressive(), **make_methods(arguments)}
    try:
        check_all(methods)
    except ValueError as error:
        parser.error(str(error))
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(arguments.model, arguments.dtype, arguments.device)
    prompts = encode(engine, texts, arguments.max_new_tokens)
    totals = compare(engine, methods, prompts, arguments.max_new_tokens)
    points = [measured(methods[name], total) for name, total in totals.items() if name != AUTOREGRESSIVE]
    fits = fit_all(points)
    name, sources = engine.checkpoint.name, "+".join(arguments.sources)
    publish(
        arguments.output,
        f"scaling_law-{name}-{arguments.dtype}-{sources}",
        f"Scaling law of lookahead decoding: {name}, n-grams of the {sources.replace('+', ' + ')}",
        describe(points, fits, len(prompts), arguments.max_new_tokens),
        {"points": [asdict(point) for point in points], "fits": {key: asdict(one) for key, one in fits.items()}},
        plot(points, fits.get("all")),
    )
    demand_same_texts(engine, totals, len(prompts))


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.set_defaults(limit=20)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 3, 5, 7, 10, 15, 30, 60], metavar="W")
    parser.add_argument("--ngrams", type=int, nargs="+", default=[3, 5, 8], metavar="N")
    parser.add_argument("--guesses", type=int, nargs="+", metavar="G", help="for each W (default: as many as W)")
    parser.add_argument("--sources", nargs="+", default=["window"], choices=SOURCES, help="what feeds the pool")
    return parser


def make_methods(arguments: argparse.Namespace) -> dict[str, DecodeSettings]:
    feeds = {f"{source}_drafts": source in arguments.sources for source in SOURCES}
    return {
        f"({window}, {ngram}, {guesses})": Lookahead(window, ngram, guesses, **feeds)
        for ngram in arguments.ngrams
        for window in arguments.windows
        for guesses in arguments.guesses or [window]
    }


def measured(how: DecodeSettings, total: Totals) -> Measured:
    assert isinstance(how, Lookahead)
    return Measured(how.window, how.ngram, how.guesses, total.tokens_per_step, total.rows_per_step)


def balanced(points: Sequence[Measured]) -> list[Measured]:
    """Those with W = G, which the formula speaks of."""
    return [point for point in points if point.window == point.guesses]


def fit_all(points: Sequence[Measured]) -> dict[str, Fit]:
    """Of the points with W = G: the fit of all, under "all", and of each n-gram size's, where there are enough."""
    sets = {"all": balanced(points)}
    for ngram in sorted({point.ngram for point in points}):
        sets[f"N = {ngram}"] = [point for point in balanced(points) if point.ngram == ngram]
    fits = {}
    for name, some in sets.items():
        if len(some) >= 3:
            speculations, lengths = [point.window for point in some], [point.ngram - 1 for point in some]
            fits[name] = fit(speculations, lengths, [point.tokens_per_step for point in some])
    return fits


def predicted(point: Measured, law: Fit) -> float:
    return float(step_compression(law.alpha, law.f, point.window, point.ngram - 1))


def describe(points: Sequence[Measured], fits: dict[str, Fit], num_prompts: int, max_new_tokens: int) -> str:
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
        f"{num_prompts} prompts, up to {max_new_tokens} new tokens each, greedy. Steps saved: of those that "
        "autoregressive decoding takes. Fitted: the paper's formula, for W = G.",
        markdown_table(["N", "W", "G", "rows/step", "tokens/step", "steps saved", "fitted"], rows, num_text=0),
    ]
    if fits:
        fitted = [
            (name, f"{one.alpha:.3f}", f"{one.f:.3f}", f"{one.residual:.3f}", f"{one.largest:.3f}")
            for name, one in fits.items()
        ]
        columns = ["points with W = G", "alpha", "f", "residual (root mean square)", "largest"]
        parts += ["S = (f - 1 + E) / f, E of b = W = G speculations of N - 1 tokens:", markdown_table(columns, fitted)]
    return "\n\n".join(parts)


def plot(points: Sequence[Measured], law: Fit | None) -> Figure:
    figure, (axes,) = make_axes()
    for number, ngram in enumerate(sorted({point.ngram for point in points})):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        mine = sorted((p for p in points if p.ngram == ngram), key=lambda point: point.rows_per_step)
        rows, tokens = [point.rows_per_step for point in mine], [point.tokens_per_step for point in mine]
        axes.plot(rows, tokens, marker, color=colour, label=f"N = {ngram}")
        if law and (diagonal := balanced(mine)):
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
