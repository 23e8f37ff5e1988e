"""Measures what a model gains by drafting with a copy of itself with weights of 4 bits, by category.

    python -m benchmarks.self_drafting --prompts FOLDER --limit 28 --rounds 3

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. Four methods take turns on every prompt: autoregressive decoding, `auto` without the copy, `auto`
with it, and `draft_model`, which has drafts of the copy alone. Texts are timed as a whole, their prompts included. The
methods without the copy have an engine of their own, so that what `auto` learns from a text helps only itself.

The weights of a GGUF file are unpacked to --dtype first: the copy of a model whose own weights have 4 bits would be
another model of the same size. Acceptance is that of the copy's first choice after a text whose drafts were right so
far. From it and from the measured cost of a draft follows the ceiling for chains, whose verification costs one step.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.categories import ALL, CategoryPrompt, read_categories, totals_as_json, totals_by_category
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, MethodTotals, take_turns
from benchmarks.shared.inputs import encode, find_model
from benchmarks.shared.methods import DecodePrompt, by_engine, describe_costs, sampling_at, timed
from benchmarks.shared.options import add_copy, add_output, add_threads, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, publish
from lp import Auto, Autoregressive, DraftModel, Engine, SecondModel, Stopping
from lp.model.extensions import Extension
from lp.model.gguf import unpacked_folder
from lp.model.quantization.quantize import Weights
from lp.platform.processor import processor_name
from lp.request import DecodingMethod
from lp.trace import StepTrace

WITHOUT, WITH, ALONE = "auto without the copy", "auto with the copy", "draft_model"
# Whether the engine has a copy, and how it decodes.
METHODS: dict[str, tuple[bool, DecodingMethod]] = {
    AUTOREGRESSIVE: (False, Autoregressive()),
    WITHOUT: (False, Auto()),
    WITH: (True, Auto()),
    ALONE: (True, DraftModel()),
}
# Drafts that follow one another in the steps of which acceptance is taken, and the longest chain of the ceiling.
DEPTH = 6
# New tokens of the first texts, which are not counted: they pay for what is made only once.
WARM_UP = 16


def main() -> None:
    arguments = parse_arguments()
    path = unpacked_folder(find_model(arguments.model))
    without = Engine.from_pretrained(path, arguments.dtype, "cpu")
    engine = Engine.from_pretrained(path, arguments.dtype, "cpu", draft=SecondModel(weights=Weights[arguments.weights]))
    engines = {False: without, True: engine}
    asked = read_categories(arguments.prompts, arguments.limit)
    texts = [one.for_model(engine.checkpoint.tokenizer) for one in asked]
    prompts = encode(engine, texts, arguments.max_new_tokens)
    take_turns(make_methods(engines, WARM_UP, arguments.temperature), prompts[:1])
    methods = make_methods(engines, arguments.max_new_tokens, arguments.temperature)
    found = [totals_by_category(asked, take_turns(methods, prompts)) for _ in range(arguments.rounds)]
    rights = acceptance(engine, asked, prompts, arguments)
    copy, name = engine.checkpoint.extensions["draft"], Path(path).name
    publish(
        arguments.output,
        f"self_drafting-{name}-{arguments.dtype}-{arguments.weights}-T{arguments.temperature:g}",
        f"A model that drafts for itself: {name}, {arguments.dtype}, copy in {arguments.weights}",
        describe(asked, found, rights, copy, arguments),
        {
            "relative_cost": copy.relative_cost,
            "relative_costs": copy.relative_costs,
            "totals": totals_as_json(found),
            "acceptance": rights,
        },
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_copy(parser, weights="int4")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {arguments.rounds}")
    return arguments


def make_methods(engines: dict[bool, Engine], max_new_tokens: int, temperature: float) -> dict[str, DecodePrompt]:
    """All that take turns, by name. engines: without the copy, and with it."""
    return {
        name: timed(by_engine(engines[has_copy], decode, temperature, max_new_tokens))
        for name, (has_copy, decode) in METHODS.items()
    }


# Acceptance


def acceptance(
    engine: Engine, asked: Sequence[CategoryPrompt], prompts: Sequence[list[int]], arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Returns for each category and depth the share of the copy's first choices that were right, of those that the text
    had reached.
    """
    reached: dict[str, Counter[int]] = {}
    right: dict[str, Counter[int]] = {}
    decode = DraftModel(depth=DEPTH, rows=1 + 4 * DEPTH)
    for number, (one, prompt) in enumerate(zip(asked, prompts, strict=True)):
        done = engine.generate(
            prompt, decode=decode, sampling=sampling_at(arguments.temperature, number),
            stopping=Stopping(arguments.max_new_tokens), trace=True,
        )  # fmt: skip
        for step in done.trace or ():
            for depth, is_right in first_choices(step):
                reached.setdefault(one.category, Counter())[depth] += 1
                right.setdefault(one.category, Counter())[depth] += is_right
    return {
        category: [right[category][depth] / counts[depth] for depth in range(1, 1 + DEPTH) if counts[depth]]
        for category, counts in reached.items()
    }


def first_choices(step: StepTrace) -> list[tuple[int, bool]]:
    """The depth of the first draft below each node of the accepted path, and whether it was right."""
    found, above = list[tuple[int, bool]](), 0
    for depth, node in enumerate([*step.accepted, None], start=1):
        below = [row for row, parent in enumerate(step.parents) if parent == above]
        if not below:
            break
        found.append((depth, below[0] == node))
        if node is None:
            break
        above = node
    return found


def ceiling(rights: Sequence[float], cost: float) -> tuple[float, int]:
    """The speed over plain decoding of the best chain, and its length. cost: of a draft, in plain steps."""
    best, expected, reach = (1.0, 0), 1.0, 1.0
    for length, share in enumerate(rights, start=1):
        reach *= share
        expected += reach
        best = max(best, (expected / (1.0 + length * cost), length))
    return best


# Results


def describe(
    asked: Sequence[CategoryPrompt],
    found: Sequence[dict[str, dict[str, MethodTotals]]],
    rights: dict[str, list[float]],
    copy: Extension,
    arguments: argparse.Namespace,
) -> str:
    cost = copy.relative_cost
    rows = [row(category, [one[category] for one in found]) for category in found[0]]
    columns = ["category", "plain, tokens/s", *(f"{name}, over plain" for name in (WITHOUT, WITH, ALONE))]
    columns += ["with over without", "tokens/step without", "with"]
    same = [sum(one[ALL][name].same_text for one in found) for name in (WITHOUT, WITH, ALONE)]
    notes = [
        f"{len(asked)} prompts, up to {arguments.max_new_tokens} new tokens each, temperature "
        f"{arguments.temperature:g}, {arguments.threads} thread{'s' * (arguments.threads > 1)} of an "
        f"{processor_name()}; medians of {len(found)} rounds. Times include the reading of prompts.",
        f"A forward of the copy takes {describe_costs(copy.relative_costs)} of a plain step (measured when the model "
        "was loaded).",
        f"Texts that plain decoding gives, of {len(asked) * len(found)}: {WITHOUT} {same[0]}, {WITH} {same[1]}, "
        f"{ALONE} {same[2]}.",
    ]
    accepted = [
        (category, *(f"{share:.2f}" for share in shares), *[""] * (DEPTH - len(shares)),
         "{:.2f}x, {}".format(*ceiling(shares, cost)))
        for category, shares in rights.items()
    ]  # fmt: skip
    depths = [f"depth {depth}" for depth in range(1, 1 + DEPTH)]
    return "\n\n".join(
        [
            bullets(notes),
            markdown_table(columns, rows),
            "The share of the copy's first choices that were right, if all before them were; and the ceiling for "
            "chains over plain decoding, with their length:",
            markdown_table(["category", *depths, "ceiling"], accepted),
        ]
    )


def row(category: str, rounds: Sequence[dict[str, MethodTotals]]) -> tuple[Any, ...]:
    """A line of the table. rounds: the totals of each, by method."""

    def over(method: str, base: str) -> str:
        return f"{median(one[method].tokens_per_s / one[base].tokens_per_s for one in rounds):.2f}x"

    def per_step(method: str) -> str:
        return f"{sum(one[method].tokens for one in rounds) / sum(one[method].steps for one in rounds):.2f}"

    plain = median(one[AUTOREGRESSIVE].tokens_per_s for one in rounds)
    ratios = [over(method, AUTOREGRESSIVE) for method in (WITHOUT, WITH, ALONE)]
    return category, f"{plain:.1f}", *ratios, over(WITH, WITHOUT), per_step(WITHOUT), per_step(WITH)


if __name__ == "__main__":
    main()
