"""Measures whether `auto` is ever slower than plain decoding, by category and temperature.

    python -m benchmarks.auto_gain --prompts FOLDER --limit 28 --rounds 3 --temperatures 0 0.8 1

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. `auto`, the default method, takes turns with autoregressive decoding on every prompt. Autoregressive
decoding is there twice: how much its two times differ says how far the others can be believed. One engine decodes all
texts, so `auto` learns over them as it does in a server. Texts are timed as a whole, their prompts included.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.categories import ALL, CategoryPrompt, read_categories, totals_as_json, totals_by_category
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, MethodTotals, take_turns
from benchmarks.shared.inputs import encode, find_model, load_engine
from benchmarks.shared.methods import by_engine, timed
from benchmarks.shared.options import add_output, add_stored, add_threads, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, publish
from lp import Auto, Autoregressive, Engine
from lp.model.checkpoint import DTYPES
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.platform.processor import processor_name
from lp.request import DecodingMethod

AUTO, AGAIN = "auto", "autoregressive again"
METHODS: dict[str, DecodingMethod] = {AUTOREGRESSIVE: Autoregressive(), AUTO: Auto(), AGAIN: Autoregressive()}
# New tokens of the first texts, which are not counted: they pay for what is made only once.
WARM_UP = 16
# What one round adds up to, by category and method.
Round = dict[str, dict[str, MethodTotals]]


def main() -> None:
    arguments = parse_arguments()
    path = find_model(arguments.model)
    weights = path if arguments.stored else unpacked_folder(path)
    engine = load_engine(weights, arguments.dtype, "cpu", CompileMode(arguments.compile))
    asked = read_categories(arguments.prompts, arguments.limit)
    texts = [one.for_model(engine.checkpoint.tokenizer) for one in asked]
    prompts = encode(engine, texts, arguments.max_new_tokens)
    found = {one: decode_rounds(engine, asked, prompts, one, arguments) for one in arguments.temperatures}
    name, stored = Path(path).stem, "-stored" * arguments.stored
    publish(
        arguments.output,
        f"auto_gain-{name}-{arguments.dtype}{stored}",
        f"Whether `auto` is ever slower than plain decoding: {name}, {arguments.dtype}",
        describe(asked, found, arguments),
        {f"{temperature:g}": totals_as_json(rounds) for temperature, rounds in found.items()},
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3-270m or a folder (default %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the model (default %(default)s)")
    add_stored(parser)
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=28, help="prompts over all categories (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="for each prompt (default %(default)s)")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.8, 1.0], metavar="T", help="default 0 0.8 1"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--compile", default="auto", choices=list(CompileMode), help="default %(default)s")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if min(arguments.temperatures) < 0:
        parser.error("--temperatures must not be below 0")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def decode_rounds(
    engine: Engine,
    asked: Sequence[CategoryPrompt],
    prompts: Sequence[list[int]],
    temperature: float,
    arguments: argparse.Namespace,
) -> list[Round]:
    def methods(max_new_tokens: int, first_seed: int) -> dict[str, Any]:
        return {
            name: timed(by_engine(engine, decode, temperature, max_new_tokens), first_seed)
            for name, decode in METHODS.items()
        }

    take_turns(methods(WARM_UP, 0), prompts[:1])
    return [
        totals_by_category(asked, take_turns(methods(arguments.max_new_tokens, number * len(prompts)), prompts))
        for number in range(arguments.rounds)
    ]


def describe(asked: Sequence[CategoryPrompt], found: dict[float, list[Round]], arguments: argparse.Namespace) -> str:
    weights = "as the file has them" if arguments.stored else f"in {arguments.dtype}"
    notes = [
        f"{len(asked)} prompts, up to {arguments.max_new_tokens} new tokens each, weights {weights}, "
        f"{arguments.threads} thread{'s' * (arguments.threads > 1)} of an {processor_name()}; medians of "
        f"{arguments.rounds} rounds. Times include the reading of prompts.",
        "Texts that plain decoding gives: "
        + ", ".join(
            f"{sum(one[ALL][AUTO].same_text for one in rounds)} of {len(asked) * len(rounds)} at T={temperature:g}"
            for temperature, rounds in found.items()
        )
        + ".",
    ]
    categories = [*next(iter(found.values()))[0]]
    columns = ["category"]
    for temperature in found:
        columns += [f"plain at T={temperature:g}, tokens/s", "`auto` over plain", "plain again", "tokens/step"]
    rows = [
        [category, *(cell for rounds in found.values() for cell in cells([one[category] for one in rounds]))]
        for category in categories
    ]
    return "\n\n".join([bullets(notes), markdown_table(columns, rows)])


def cells(rounds: Sequence[dict[str, MethodTotals]]) -> list[str]:
    """What the table says of a category at a temperature. rounds: the totals of each, by method."""

    def over_plain(method: str) -> str:
        return f"{median(one[method].tokens_per_s / one[AUTOREGRESSIVE].tokens_per_s for one in rounds):.2f}x"

    plain = median(one[AUTOREGRESSIVE].tokens_per_s for one in rounds)
    per_step = sum(one[AUTO].tokens for one in rounds) / sum(one[AUTO].steps for one in rounds)
    return [f"{plain:.1f}", over_plain(AUTO), over_plain(AGAIN), f"{per_step:.2f}"]


if __name__ == "__main__":
    main()
