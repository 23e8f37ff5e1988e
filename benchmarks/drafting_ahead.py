"""Measures what a rank gains that drafts ahead with a copy of the model, by category.

    python -m benchmarks.drafting_ahead --prompts FOLDER --limit 28 --rounds 3

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. Every rank has one core. Five ways of decoding take turns on every prompt. One rank: autoregressive
decoding, `auto`, and `auto` with a copy of the model that drafts before its steps. Two ranks: `auto`, whose trees they
share, and `auto` with the copy, where one rank verifies while the other drafts ahead. All ranks stay loaded. Texts are
timed as a whole, their prompts included. Ranks learn from what they have decoded how long steps take, as those of a
server do.

The weights of a GGUF file are unpacked to --dtype first, as in benchmarks.self_drafting. The two ranks share one
memory, which ranks on devices of their own do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from benchmarks.shared.categories import ALL, CategoryPrompt, read_categories, totals_as_json, totals_by_category
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, DecodedText, MethodTotals, decode_text, take_turns
from benchmarks.shared.inputs import encode, find_model
from benchmarks.shared.methods import describe_costs, sampling_at, timed
from benchmarks.shared.options import add_copy, add_output, make_parser, parse
from benchmarks.shared.ranks import answer_about_times, ask, ask_and_learn, assembled, take_core, waiting_ranks
from benchmarks.shared.report import bullets, markdown_table, publish
from lp import Auto, Autoregressive, Engine, SecondModel, Stopping
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from lp.model.gguf import unpacked_folder
from lp.model.quantization.quantize import Weights
from lp.platform.processor import processor_name
from lp.request import DecodingMethod
from lp.trace import LETTERS
from parallel.mesh import Mode, ParallelSettings


@dataclass(frozen=True)
class Way:
    """A way of decoding: the ranks that share it, whether they have a copy of the model, and their method."""

    ranks: int
    has_copy: bool
    decode: DecodingMethod


AUTO, COPY = "one rank, `auto`", "one rank, copy"
SHARED, AHEAD = "two ranks, `auto`", "two ranks, copy"
WAYS = {
    AUTOREGRESSIVE: Way(1, False, Autoregressive()),
    AUTO: Way(1, False, Auto()),
    COPY: Way(1, True, Auto()),
    SHARED: Way(2, False, Auto()),
    AHEAD: Way(2, True, Auto()),
}
# New tokens of the first texts, which are not counted: they pay for what is made only once.
WARM_UP = 16
# The letters of the copy's drafts in traces.
DRAFTED = {LETTERS["draft_model"], LETTERS["draft_ahead"]}


def main() -> None:
    arguments = parse_arguments()
    arguments.model = unpacked_folder(find_model(arguments.model))
    asked = read_categories(arguments.prompts, arguments.limit)
    given = arguments.model, arguments.dtype, arguments.weights, asked, arguments.max_new_tokens, arguments.temperature
    with ExitStack() as stack:
        groups: dict[tuple[int, bool], list[Connection]] = {}
        for way in WAYS.values():
            if (key := (way.ranks, way.has_copy)) not in groups:
                groups[key] = stack.enter_context(waiting_ranks(run_rank, way.ranks, *key, *given))

        def by(name: str, length: int) -> Callable[[list[int], int], DecodedText]:
            way = WAYS[name]
            group = groups[way.ranks, way.has_copy]
            return lambda prompt, number: ask_and_learn(group, ("decode", name, number, length))

        numbers = [[number] for number in range(len(asked))]  # the ranks have the prompts
        take_turns({name: by(name, WARM_UP) for name in WAYS}, numbers[:1])
        methods = {name: by(name, arguments.max_new_tokens) for name in WAYS}
        rounds = [take_turns(methods, numbers) for _ in range(arguments.rounds)]
        found = [totals_by_category(asked, one) for one in rounds]
        reached = {name: ask(groups[WAYS[name].ranks, True], ("reached", name)) for name in (COPY, AHEAD)}
        costs = ask(groups[2, True], ("costs",))
    name = Path(arguments.model).name
    publish(
        arguments.output,
        f"drafting_ahead-{name}-{arguments.dtype}-{arguments.weights}-T{arguments.temperature:g}",
        f"A rank that drafts ahead: {name}, {arguments.dtype}, copy in {arguments.weights}",
        describe(asked, found, reached, costs, arguments),
        {"totals": totals_as_json(found), "reached": reached, "costs": costs},
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_copy(parser, weights="int8")
    add_output(parser)
    arguments = parse(parser)
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {arguments.rounds}")
    return arguments


# Ranks


def run_rank(
    connection: Connection,
    rank: int,
    port: int,
    num_ranks: int,
    has_copy: bool,
    model: str,
    dtype: str,
    weights: str,
    asked: Sequence[CategoryPrompt],
    length: int,
    temperature: float,
) -> None:
    """One rank's process."""
    take_core(rank)
    torch.set_num_threads(1)
    settings = EngineSettings(ModelSettings(model, dtype, "cpu"))
    if has_copy:
        settings.draft = SecondModel(weights=Weights[weights])
    with assembled(settings, ParallelSettings(mode=Mode.auto), rank, num_ranks, port) as engine:
        prompts = encode(engine, [one.for_model(engine.checkpoint.tokenizer) for one in asked], length)
        while (work := connection.recv())[0] != "end":
            match work:
                case ("decode", name, number, most):
                    decode = WAYS[name].decode
                    sampling = sampling_at(temperature, number)
                    text = timed(lambda prompt, _: decode_text(engine, prompt, decode, sampling, most))  # noqa: B023
                    connection.send(text(prompts[number], number))
                case ("reached", name):
                    connection.send(share_with_drafts(engine, prompts, WAYS[name].decode, temperature, length))
                case ("costs",):
                    draft = engine.checkpoint.extensions["draft"]
                    connection.send(draft.relative_costs)
                case _:
                    connection.send(answer_about_times(engine, work))


def share_with_drafts(
    engine: Engine, prompts: Sequence[list[int]], decode: DecodingMethod, temperature: float, length: int
) -> float:
    """The share of steps whose trees have drafts of the copy."""
    steps = [
        step
        for number, prompt in enumerate(prompts)
        for step in engine.generate(
            prompt, decode=decode, sampling=sampling_at(temperature, number), stopping=Stopping(length), trace=True
        ).trace
        or ()
    ]
    return sum(not DRAFTED.isdisjoint(step.sources) for step in steps) / len(steps)


# Results


def describe(
    asked: Sequence[CategoryPrompt],
    found: Sequence[dict[str, dict[str, MethodTotals]]],
    reached: dict[str, float],
    costs: Sequence[float],
    arguments: argparse.Namespace,
) -> str:
    same = ", ".join(f"{name} {sum(one[ALL][name].same_text for one in found)}" for name in WAYS)
    notes = [
        f"{len(asked)} prompts, up to {arguments.max_new_tokens} new tokens each, temperature "
        f"{arguments.temperature:g}, one core of an {processor_name()} for each rank; medians of {len(found)} rounds. "
        "Times include the reading of prompts.",
        f"A forward of the copy takes {describe_costs(costs)} of a plain step (measured when the model was loaded).",
        f"Steps whose trees had drafts of the copy: {reached[COPY]:.0%} on one rank, which drafts before a step where "
        f"that pays; {reached[AHEAD]:.0%} on two, where its end was among those drafted for.",
        f"Texts that plain decoding gives, of {len(asked) * len(found)}: {same}.",
    ]
    columns = ["category", "plain, tokens/s", *(f"{name}, over plain" for name in list(WAYS)[1:])]
    columns += [f"{SHARED} over {AUTO}", f"{AHEAD} over {COPY}", "over the best of one rank", "tokens/step", "ahead"]
    rows = [row([one[category] for one in found], category) for category in found[0]]
    return "\n\n".join([bullets(notes), markdown_table(columns, rows)])


def row(rounds: Sequence[dict[str, MethodTotals]], category: str) -> tuple[str, ...]:
    """A line of the table. rounds: the totals of each, by way."""

    def over(name: str, *bases: str) -> str:
        ratios = [one[name].tokens_per_s / max(one[base].tokens_per_s for base in bases) for one in rounds]
        return f"{median(ratios):.2f}x"

    def per_step(name: str) -> str:
        return f"{sum(one[name].tokens for one in rounds) / sum(one[name].steps for one in rounds):.2f}"

    plain = median(one[AUTOREGRESSIVE].tokens_per_s for one in rounds)
    over_plain = [over(name, AUTOREGRESSIVE) for name in list(WAYS)[1:]]
    pairs = [over(SHARED, AUTO), over(AHEAD, COPY), over(AHEAD, AUTO, COPY)]
    return category, f"{plain:.1f}", *over_plain, *pairs, per_step(COPY), per_step(AHEAD)


if __name__ == "__main__":
    main()
