"""Compares Jacobi with Gauss-Seidel iteration: how soon the tokens of a block are right.

    python -m benchmarks.fixed_point --prompts prompts.jsonl --model smollm2 --limit 20 --size 16

Greedy decoding of a block is a system of equations with one solution (benchmarks/fixed_point/iterations.py). Jacobi
iteration updates all open tokens in one call of the model, Gauss-Seidel iteration one after another; each is tried
alone and with a pool of n-grams, whose drafts the same call verifies. The table has tokens that are right after each
call. A picture shows every iterate of one block (--strip).

A second table compares whole texts of decode=jacobi: windows of a fixed size, and decode.window=auto, which tries out
how many guesses pay off on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.fixed_point import strip
from benchmarks.fixed_point.iterations import Ask, Iterate, Order, Pool, solve
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, MethodTotals
from benchmarks.shared.greedy import compare
from benchmarks.shared.inputs import encode, find_model, load_engine, read_prompts
from benchmarks.shared.options import ascending_numbers, make_prompts_parser, parse
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import markdown_table, progress, publish
from lp import Autoregressive, Engine, Jacobi, Sampling
from lp.model.checkpoint import DTYPES
from lp.request import DecodingMethod
from lp.request import Sequence as TextSequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import TokenTree

# Calls after which the table says how many tokens are right.
SHOWN_CALLS = (1, 2, 4, 8, 12, 16, 24, 32)
# The ways to solve a block, by their names.
WAYS = {
    "Jacobi": (Order.jacobi, False),
    "Jacobi with a pool": (Order.jacobi, True),
    "Gauss-Seidel": (Order.gauss_seidel, False),
    "Gauss-Seidel with a pool": (Order.gauss_seidel, True),
}
# What each way does, for the picture.
TOLD = {
    "Jacobi": "every call updates all open tokens at once, from the line before",
    "Jacobi with a pool": "the call also verifies n-grams of earlier lines: the idea of lookahead decoding",
    "Gauss-Seidel": "every call updates one token, from the newest ones before it: autoregressive decoding",
    "Gauss-Seidel with a pool": "the call also verifies n-grams of the text: prompt lookup",
}
Solved = dict[str, list[Iterate]]


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    if min(arguments.size, arguments.ngram - 1, arguments.guesses) < 1:
        parser.error("--size and --guesses must be at least 1, --ngram at least 2")
    if not 0 <= arguments.strip <= arguments.limit:
        parser.error(f"--strip {arguments.strip} must be from 0 to --limit {arguments.limit}")
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(find_model(arguments.model), arguments.dtype, arguments.device)
    prompts = encode(engine, texts, max(arguments.size, arguments.max_new_tokens))
    pool = Pool(arguments.ngram, arguments.guesses)
    solved = [solve_block(engine, prompt, arguments.size, pool) for prompt in progress(prompts, "blocks")]
    totals = compare(engine, make_methods(arguments.windows), prompts, arguments.max_new_tokens)
    name = f"fixed-point-{engine.checkpoint.name}-{arguments.dtype}"
    arguments.output.joinpath(f"{name}-strip.svg").write_text(
        draw_strip(engine, chosen_block(solved, arguments.strip)), encoding="utf-8"
    )
    publish(
        arguments.output,
        name,
        f"Jacobi and Gauss-Seidel iteration: {engine.checkpoint.name}, {arguments.dtype}",
        describe(solved, arguments.size, pool, totals, arguments.max_new_tokens, f"{name}-strip.svg"),
        {"means": {way: means(solved, way) for way in WAYS}, "texts": texts_as_json(totals)},
        plot(solved),
    )
    demand_fixed_point(solved, engine)


def make_arguments() -> argparse.ArgumentParser:
    parser = make_prompts_parser(__doc__)
    parser.set_defaults(limit=20, max_new_tokens=64)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument("--size", type=int, default=16, help="K, tokens of a block (default %(default)s)")
    parser.add_argument("--ngram", type=int, default=4, help="N, tokens of the pool's n-grams (default %(default)s)")
    parser.add_argument("--guesses", type=int, default=4, help="G, n-grams that a call verifies (default %(default)s)")
    parser.add_argument(
        "--strip", type=int, default=0, help="the prompt whose block is drawn, from 1 (default: the most typical one)"
    )
    parser.add_argument(
        "--windows",
        type=ascending_numbers,
        default=[4, 8, 16],
        metavar="W,...",
        help="sizes of decode=jacobi to compare with decode.window=auto (default 4,8,16)",
    )
    return parser


def make_methods(windows: Sequence[int]) -> dict[str, DecodingMethod]:
    """Autoregressive decoding comes first: the others are compared with it."""
    fixed = {f"jacobi, window={window}": Jacobi(window) for window in windows}
    return {AUTOREGRESSIVE: Autoregressive(), **fixed, "jacobi, window=auto": Jacobi("auto")}


def solve_block(engine: Engine, prompt: list[int], size: int, pool: Pool) -> Solved:
    """A block after the prompt, solved in every way."""
    return {
        way: solve(make_ask(engine, prompt), prompt, size, order, pool if has_pool else None)
        for way, (order, has_pool) in WAYS.items()
    }


def make_ask(engine: Engine, prompt: list[int]) -> Ask:
    """Answers trees by the engine's model. Keys and values of the prompt are computed once."""
    device = SingleDevice(engine.checkpoint.model)
    sequence = TextSequence("block", list(prompt), len(prompt), Sampling.greedy())
    device.open(sequence)

    def ask(tokens: list[int], tree: TokenTree) -> np.ndarray:
        sequence.tokens[:] = tokens
        return device.launch([StepInput.of(sequence, tree)])()[0].targets

    return ask


def means(solved: Sequence[Solved], way: str) -> dict[str, Any]:
    """Means over the blocks. settled, right: tokens after each call, from the first guess on; a block that is solved
    stays as it is.
    """
    ours, truths = [one[way] for one in solved], [one["Gauss-Seidel"][-1].tokens for one in solved]
    most_calls = max(len(iterates) for iterates in ours)
    padded = [[*iterates, *iterates[-1:] * (most_calls - len(iterates))] for iterates in ours]
    right = [
        [sum(iterate.right(truth)) for iterate in iterates]  # pyright: ignore[reportArgumentType]
        for iterates, truth in zip(padded, truths, strict=True)
    ]
    calls = [len(iterates) - 1 for iterates in ours]
    return {
        "calls": float(np.mean(calls)),
        "rows": float(np.mean([sum(iterate.num_rows for iterate in iterates) for iterates in ours])),
        "settled": np.mean([[iterate.num_settled for iterate in iterates] for iterates in padded], axis=0).tolist(),
        "right": np.mean(right, axis=0).tolist(),
    }


def describe(
    solved: Sequence[Solved], size: int, pool: Pool, totals: dict[str, MethodTotals], max_new_tokens: int, picture: str
) -> str:
    shown = [call for call in SHOWN_CALLS if call < size] + [size]
    columns = ["order of updates", "calls", "tokens/call", "rows", *(f"after {call}" for call in shown)]
    rows = []
    for way in WAYS:
        mean = means(solved, way)
        rows.append(
            [
                way,
                f"{mean['calls']:.1f}",
                f"{size / mean['calls']:.2f}",
                f"{mean['rows']:.0f}",
                *(f"{_after(mean['settled'], call):.1f} ({_after(mean['right'], call):.1f})" for call in shown),
            ]
        )
    return (
        f"{len(solved)} blocks of {size} tokens, one after each prompt, greedy; means. The pool has n-grams of "
        f"{pool.ngram} tokens, of which a call verifies up to {pool.guesses}. Calls and rows: until the block is "
        "solved. After so many calls: tokens that are settled and, in brackets, all that are right.\n\n"
        f"{markdown_table(columns, rows)}\n\n![Every iterate of one block]({picture})\n\n"
        f"Whole texts of up to {max_new_tokens} tokens. Speed-up: tokens per second over autoregressive decoding "
        f"in the same run.\n\n{_texts_table(totals, len(solved))}"
    )


def _after(values: Sequence[float], call: int) -> float:
    """The value after a call; that of the end if there were fewer."""
    return values[min(call, len(values) - 1)]


def _texts_table(totals: dict[str, MethodTotals], num_prompts: int) -> str:
    plain = totals[AUTOREGRESSIVE]
    rows = [
        [
            name,
            f"{total.tokens_per_step:.2f}",
            f"{total.rows_per_step:.1f}",
            f"{total.tokens_per_s / plain.tokens_per_s:.2f}x",
            f"{total.same_text}/{num_prompts}",
        ]
        for name, total in totals.items()
    ]
    return markdown_table(["method", "tokens/step", "rows/step", "speed-up", "same text"], rows)


def texts_as_json(totals: dict[str, MethodTotals]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "tokens_per_step": round(total.tokens_per_step, 3),
            "rows_per_step": round(total.rows_per_step, 2),
            "tokens_per_s": round(total.tokens_per_s, 2),
        }
        for name, total in totals.items()
    }


def plot(solved: Sequence[Solved]) -> Figure:
    """Settled and right tokens by the number of calls."""
    figure, panels = make_axes(2, width=7.5, height=3.2)
    for axes, (key, title) in zip(
        panels, {"settled": "settled", "right": "right, settled or not"}.items(), strict=True
    ):
        for way, colour in zip(WAYS, COLOURS, strict=False):
            axes.plot(means(solved, way)[key], color=colour, label=way)
        axes.set_xlabel("calls of the model")
        axes.set_title(f"tokens of a block that are {title}")
    panels[0].legend()
    return figure


def chosen_block(solved: Sequence[Solved], number: int) -> Solved:
    """The block after a prompt, from 1; for 0, the one whose calls, in all ways, are nearest to the means."""
    if number:
        return solved[min(number, len(solved)) - 1]
    calls = np.array([[len(one[way]) - 1 for way in WAYS] for one in solved])
    return solved[int(np.abs(calls - calls.mean(0)).sum(1).argmin())]


def draw_strip(engine: Engine, solved: Solved) -> str:
    tokens = {token for iterates in solved.values() for iterate in iterates for token in iterate.tokens}
    words = {token: str(engine.checkpoint.tokenizer.decode([token])) for token in tokens if token is not None}
    return strip.draw(solved, words, TOLD)


def demand_fixed_point(solved: Sequence[Solved], engine: Engine) -> None:
    """Ends the program with exit status 1 if a block was solved differently in float32, where it must not be."""
    different = sum(len({tuple(iterates[-1].tokens) for iterates in one.values()}) > 1 for one in solved)
    if different and str(engine.checkpoint.model.dtype) == "torch.float32":
        raise SystemExit(f"{different} blocks have several solutions in float32, where there is one")


if __name__ == "__main__":
    main()
