"""Computes what each mode of parallelism costs a rank in memory, operations and communication.

    python -m benchmarks.paper.costs --model FOLDER_OR_HUB_ID --dtype bfloat16 --context 4096

The figures follow from the model's configuration (benchmarks/projections/rank_cost.py); no weights are needed. Where
the model is a folder with weights, the command also measures what this machine can show: the bytes of the weights and
of the cache and, by running a step of one rank, its operations and its collectives. Degrees by which the
model cannot be split are left out, and the output names them.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from transformers import PreTrainedConfig

from benchmarks.projections.measured_cost import CostCheck, check_cost
from benchmarks.projections.rank_cost import RankCost, cost_of, full_tree
from benchmarks.shared.greedy import check_methods
from benchmarks.shared.options import add_output, make_parser, parse, triple
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import bullets, markdown_table, progress, publish
from benchmarks.shared.shapes import read_config
from lp import Lookahead
from lp.model.checkpoint import DTYPES
from parallel.mesh import AXES

DEGREES = ["single", "lp=2", "lp=4", "lp=8", "tp=2", "tp=4", "tp=8", "pp=2", "pp=4", "pp=8", "lp=2,tp=2", "lp=4,tp=2"]


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    check_methods(parser, [Lookahead(*arguments.setting)])
    if arguments.context < 1:
        parser.error(f"--context must be at least 1, not {arguments.context}")
    config = read_config(arguments.model)
    costs, checks, notes = cost_all(config, arguments)
    name = Path(os.path.abspath(arguments.model)).name
    publish(
        arguments.output,
        f"costs-{name}-{arguments.dtype}",
        f"What a mode costs a rank: {name}, {arguments.dtype}",
        describe(costs, checks, notes, arguments),
        {"costs": [asdict(cost) for cost in costs], "checks": [asdict(one) for one in checks], "notes": notes},
        plot(costs),
    )


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="demo/python-11m", help="folder or hub id (default demo/python-11m)")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=DTYPES, help="format of weights and cache (default %(default)s)"
    )
    parser.add_argument("--context", type=int, default=1024, help="cached tokens (default %(default)s)")
    parser.add_argument(
        "--setting",
        type=triple,
        default=(15, 5, 15),
        metavar="W,N,G",
        help="setting of lookahead decoding (default 15,5,15)",
    )
    parser.add_argument(
        "--degrees",
        type=degrees,
        nargs="+",
        default=[degrees(text) for text in DEGREES],
        metavar="lp=L,tp=T",
        help=f"single, or degrees of lp, tp and pp (default {' '.join(DEGREES)})",
    )
    parser.add_argument("--no-checks", action="store_true", help="measure nothing")
    add_output(parser)
    return parser


def degrees(text: str) -> dict[str, int]:
    """Reads degrees by the name of their axis; `single` has none. The type of an option."""
    pairs = [pair.partition("=") for pair in text.split(",")] if text != "single" else []
    if any(axis not in AXES or not degree.isdecimal() or int(degree) < 1 for axis, _, degree in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is neither `single` nor degrees of {'/'.join(AXES)} like lp=2,tp=2")
    return {axis: int(degree) for axis, _, degree in pairs}


def cost_all(
    config: PreTrainedConfig, arguments: argparse.Namespace
) -> tuple[list[RankCost], list[CostCheck], list[str]]:
    """The costs, the checks of those that can be measured, and notes on which degrees are left out and why."""
    costs: list[RankCost] = []
    checks: list[CostCheck] = []
    notes: list[str] = []
    tree, dtype = full_tree(*arguments.setting), DTYPES[arguments.dtype]
    has_weights = any(Path(arguments.model).glob("*.safetensors")) and not arguments.no_checks
    for wanted in progress(arguments.degrees, "modes", unit="mode"):
        try:
            cost = cost_of(config, dtype, wanted, tree, arguments.context)
        except ValueError as error:
            name = ", ".join(f"{axis}={degree}" for axis, degree in wanted.items())
            notes.append(f"{name} is left out: {error}")
            continue
        costs.append(cost)
        if has_weights:
            checks += check_cost(arguments.model, arguments.dtype, wanted, cost, tree, arguments.context)
    return costs, checks, notes


def describe(costs: list[RankCost], checks: list[CostCheck], notes: list[str], arguments: argparse.Namespace) -> str:
    unit, divisor = unit_of(costs)
    rows = [
        (
            cost.mode,
            cost.ranks,
            f"{cost.weight_bytes / divisor:.2f}",
            f"{cost.cache_bytes / divisor:.2f}",
            cost.rows,
            f"{cost.flops / 1e9:.2f}",
            cost.collectives,
            f"{cost.bytes_sent / 1e3:.2f}",
        )
        for cost in costs
    ]
    window, ngram, guesses = arguments.setting
    memory = [f"weights, {unit}", f"KV cache, {unit}"]
    columns = ["mode", "ranks", *memory, "rows", "GFLOP/step", "collectives/step", "KB sent/step"]
    parts = [
        "Computed for the rank with the highest cost. Lookahead decoding at (W, N, G) = "
        f"({window}, {ngram}, {guesses}), with the whole tree and no row shared by two n-grams, on "
        f"{arguments.context} cached tokens. Under lp a rank computes, besides these rows, the tokens of the last step "
        "that another rank computed: at most the tokens per step minus one. Collectives: the longest sequence of "
        "collectives, or of a pipeline's messages, that follow one another in a step. KB: what the rank sends.",
        *([bullets(notes)] if notes else []),
        markdown_table(columns, rows),
    ]
    if checks:
        checked = [(one.mode, one.what, one.computed, one.measured, f"{one.ratio - 1:+.2%}") for one in checks]
        parts += [
            "Measured on this machine:",
            markdown_table(["mode", "what", "computed", "measured", "difference"], checked, num_text=2),
        ]
    return "\n\n".join(parts)


def unit_of(costs: list[RankCost]) -> tuple[str, float]:
    """The unit in which memory is given, and its size in bytes."""
    return ("GB", 1e9) if max((cost.weight_bytes for cost in costs), default=0) >= 1e9 else ("MB", 1e6)


def plot(costs: list[RankCost]) -> Figure:
    """A panel of a rank's memory and one of its operations in a step, by mode."""
    figure, (memory, arithmetic) = make_axes(2, height=0.9 + 0.28 * len(costs))
    unit, divisor = unit_of(costs)
    places = [-number for number in range(len(costs))]
    weights = [cost.weight_bytes / divisor for cost in costs]
    caches = [cost.cache_bytes / divisor for cost in costs]
    memory.barh(places, weights, color=COLOURS[0], label="weights")
    memory.barh(places, caches, left=weights, color=COLOURS[1], label="KV cache")
    memory.set_yticks(places, [cost.mode for cost in costs])
    memory.set_xlabel(f"memory of a rank, {unit}")
    arithmetic.barh(places, [cost.flops / 1e9 for cost in costs], color=COLOURS[2])
    arithmetic.set_xlabel("operations of a rank, GFLOP a step")
    for axes in (memory, arithmetic):
        axes.grid(axis="y", visible=False)
    figure.legend(*memory.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


if __name__ == "__main__":
    main()
