"""Compares best-first beam search with beam search: the same text, with how many calls.

    python -m benchmarks.methods.best_first --prompts FOLDER --limit 40

Calls are counted as in the paper (Meister et al. 2020, arXiv 2007.03909, table 2): a hypothesis that the model is asked
to continue. Beam search continues all its hypotheses in one forward pass of the token tree, best-first search one at a
time, so forward passes are counted as well. Both take length_penalty=0 and early_stopping=never, which best-first
search needs. FOLDER is that of `benchmarks.methods`. Exit status 1: in float32 a first text differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.shared.categories import CategoryPrompt, read_categories
from benchmarks.shared.inputs import encode, find_model, load_engine
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from lp import Beam, Engine, Stopping
from lp.model.checkpoint import DTYPES
from lp.model.compilation import CompileMode
from lp.request import DecodeLimits


@dataclass(frozen=True)
class Searched:
    """One prompt by both searches. calls: hypotheses continued. forwards: passes of the model. rows: of all passes.
    Of each: beam search's, then best-first search's. same: whether the best texts are the same.
    """

    calls: tuple[int, int]
    forwards: tuple[int, int]
    rows: tuple[int, int]
    same: bool


def main() -> None:
    arguments = parse_arguments()
    asked = read_categories(arguments.prompts, arguments.limit)
    engine = load_engine(find_model(arguments.model), arguments.dtype, "cpu", arguments.compile)
    found: dict[str, list[Searched]] = {}
    for prompt in progress(asked, "beams"):
        found.setdefault(prompt.category, []).append(search(engine, prompt, arguments))
    publish(
        arguments.output,
        f"best_first-{engine.checkpoint.name}-{arguments.dtype}",
        f"Best-first beam search: {engine.checkpoint.name}, {arguments.dtype}",
        describe(found, arguments),
        {
            "num_beams": arguments.num_beams,
            "max_new_tokens": arguments.max_new_tokens,
            "prompts": {name: [asdict(one) for one in own] for name, own in found.items()},
        },
    )
    different = sum(not one.same for own in found.values() for one in own)
    if different and arguments.dtype == "float32":
        raise SystemExit(f"in float32 both searches must find the same text, but {different} differ")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, or a checkpoint folder (default %(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=40, help="prompts over all categories (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="for each prompt (default %(default)s)")
    parser.add_argument("--num-beams", type=int, default=4, help="beams of a search (default %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument("--compile", default="auto", choices=list(CompileMode), help="default %(default)s")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    try:
        make_search(arguments, best_first=True).check(DecodeLimits())
    except ValueError as error:
        parser.error(str(error))
    return arguments


def make_search(arguments: argparse.Namespace, best_first: bool) -> Beam:
    return Beam(arguments.num_beams, length_penalty=0.0, early_stopping="never", best_first=best_first)


def search(engine: Engine, prompt: CategoryPrompt, arguments: argparse.Namespace) -> Searched:
    (tokens,) = encode(engine, [prompt.for_model(engine.checkpoint.tokenizer)], arguments.max_new_tokens)
    stopping = Stopping(arguments.max_new_tokens)
    both = [
        engine.generate(tokens, decode=make_search(arguments, best_first), stopping=stopping)
        for best_first in (False, True)
    ]
    beams = [one.beams for one in both if one.beams is not None]
    texts = [one.texts[0].token_ids for one in beams]
    first, second = (one.stats for one in both)
    return Searched(
        (beams[0].num_calls, beams[1].num_calls),
        (first.steps, second.steps),
        (first.rows, second.rows),
        texts[0] == texts[1],
    )


def describe(found: Mapping[str, Sequence[Searched]], arguments: argparse.Namespace) -> str:
    rows = [_row(name, own) for name, own in found.items()]
    rows.append(_row("all", [one for own in found.values() for one in own]))
    columns = ["category", "calls", "best-first", "share", "fewer", "forwards", "best-first", "rows", "best-first"]
    return (
        f"Up to {arguments.max_new_tokens} new tokens, {arguments.num_beams} beams, length_penalty=0, "
        "early_stopping=never; means for a prompt. Calls: hypotheses that the model was asked to continue. Share: "
        "those of best-first search over those of beam search. Fewer: prompts on which best-first search needed fewer. "
        "Forwards: passes of the model; beam search continues all its hypotheses in one. Rows: of all passes.\n\n"
        + markdown_table([*columns, "same first text"], rows)
    )


def _row(name: str, own: Sequence[Searched]) -> list[str]:
    calls, forwards, rows = (
        [fmean(one[search] for one in counts) for search in (0, 1)]
        for counts in ([one.calls for one in own], [one.forwards for one in own], [one.rows for one in own])
    )
    fewer = sum(one.calls[1] < one.calls[0] for one in own)
    return [
        name,
        *(f"{number:.1f}" for number in calls),
        f"{calls[1] / calls[0]:.0%}",
        f"{fewer}/{len(own)}",
        *(f"{number:.1f}" for number in (*forwards, *rows)),
        f"{sum(one.same for one in own)}/{len(own)}",
    ]


if __name__ == "__main__":
    main()
