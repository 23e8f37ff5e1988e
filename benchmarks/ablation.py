"""The paper's ablation (arXiv 2402.02057, table 3): which branch of lookahead decoding is worth what.

    python -m benchmarks.ablation --prompts prompts.jsonl --limit 50

The paper writes a setting as (N, W, G): (5, 1, 30) has 5-grams, a window of one column and 30 guesses. So
(5, 1, 30) leaves next to no lookahead branch, (5, 30, 1) next to no verification branch, (5, 15, 15) balances them.
Settings on the command line and in the table are in the paper's order; the rest of this project writes (W, N, G).

Each is run with and without the prompt as reference, which is whether the prompt's n-grams are in the pool. Prompt
look-up has no window: its pool is the generated text, and the prompt. Lookahead's pool has the generated text's
n-grams with --generated-drafts alone: the paper's has not, this project's has by default. Greedy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from matplotlib.figure import Figure

from benchmarks.shared.greedy import Totals, check_all, compare, demand_same_texts
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import (
    encode,
    load_engine,
    make_parser,
    markdown_table,
    parse,
    publish,
    read_prompts,
    triple,
)
from lp import Autoregressive, Lookahead, PromptLookup
from lp.methods import DecodeSettings
from lp.model.checkpoint import DTYPES


@dataclass(frozen=True)
class Entry:
    """A line of the table. with_prompt: is the prompt the reference; None for a method that knows no reference."""

    method: str
    with_prompt: bool | None
    how: DecodeSettings

    @property
    def name(self) -> str:
        return self.method + {None: "", False: " without prompt", True: " with prompt"}[self.with_prompt]


@dataclass(frozen=True)
class Outcome:
    """speed_up: tokens per second over those of autoregressive decoding in the same run."""

    method: str
    with_prompt: bool | None
    tokens_per_step: float
    rows_per_step: float
    tokens_per_s: float
    speed_up: float
    same_text: int


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    entries = make_entries(arguments)
    methods = {entry.name: entry.how for entry in entries}
    try:
        check_all(methods)
    except ValueError as error:
        parser.error(str(error))
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(arguments.model, arguments.dtype, arguments.device)
    prompts = encode(engine, texts, arguments.max_new_tokens)
    totals = compare(engine, methods, prompts, arguments.max_new_tokens)
    outcomes = summarise(entries, totals)
    name = engine.checkpoint.name
    publish(
        arguments.output,
        f"ablation-{name}-{arguments.dtype}{'-generated' if arguments.generated_drafts else ''}",
        f"Ablation of lookahead decoding: {name}, {arguments.dtype}",
        describe(outcomes, len(prompts), arguments.max_new_tokens),
        {"outcomes": [asdict(outcome) for outcome in outcomes]},
        plot(outcomes),
    )
    demand_same_texts(engine, totals, len(prompts))


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.set_defaults(limit=50)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument(
        "--settings",
        type=triple,
        nargs="+",
        default=[(5, 1, 30), (5, 30, 1), (5, 15, 15)],
        metavar="N,W,G",
        help="of lookahead, in the paper's order (default 5,1,30 5,30,1 5,15,15)",
    )
    parser.add_argument(
        "--lookup", type=pair, nargs="+", default=[(5, 30)], metavar="N,G", help="of prompt look-up (default 5,30)"
    )
    parser.add_argument("--generated-drafts", action="store_true", help="lookahead's pool has the generated text too")
    return parser


def pair(text: str) -> tuple[int, int]:
    """N, G."""
    try:
        ngram, guesses = (int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers with a comma between") from None
    return ngram, guesses


def make_entries(arguments: argparse.Namespace) -> list[Entry]:
    """Autoregressive decoding first: it is what the others are compared with."""
    entries = [Entry("autoregressive", None, Autoregressive())]
    for ngram, guesses in arguments.lookup:
        for with_prompt in (False, True):
            how = PromptLookup(ngram, guesses, prompt_drafts=with_prompt)
            entries.append(Entry(f"prompt look-up ({ngram}, {guesses})", with_prompt, how))
    for ngram, window, guesses in arguments.settings:
        for with_prompt in (False, True):
            feeds = {"prompt_drafts": with_prompt, "generated_drafts": arguments.generated_drafts}
            how = Lookahead(window, ngram, guesses, **feeds)
            entries.append(Entry(f"lookahead ({ngram}, {window}, {guesses})", with_prompt, how))
    return entries


def summarise(entries: list[Entry], totals: Mapping[str, Totals]) -> list[Outcome]:
    base = totals[entries[0].name]
    return [
        Outcome(
            entry.method,
            entry.with_prompt,
            round(total.tokens_per_step, 3),
            round(total.rows_per_step, 2),
            round(total.tokens_per_s, 2),
            round(total.tokens_per_s / base.tokens_per_s, 3),
            total.same_text,
        )
        for entry in entries
        for total in [totals[entry.name]]
    ]


def describe(outcomes: list[Outcome], num_prompts: int, max_new_tokens: int) -> str:
    columns = ["(N, W, G)", "prompt as reference", "tokens/step", "rows/step", "tokens/s", "speed-up", "same text"]
    rows = [
        (
            outcome.method,
            {None: "", False: "no", True: "yes"}[outcome.with_prompt],
            f"{outcome.tokens_per_step:.2f}",
            f"{outcome.rows_per_step:.1f}",
            f"{outcome.tokens_per_s:.1f}",
            f"{outcome.speed_up:.2f}x",
            f"{outcome.same_text}/{num_prompts}",
        )
        for outcome in outcomes
    ]
    return (
        f"{num_prompts} prompts, up to {max_new_tokens} new tokens each, greedy. Settings are (N, W, G) as in the "
        "paper, (N, G) for prompt look-up. Speed-up: tokens per second over those of autoregressive decoding in the "
        "same run, the prompt's reading included. Same text: as autoregressive decoding's.\n\n"
        + markdown_table(columns, rows, num_text=2)
    )


def plot(outcomes: list[Outcome]) -> Figure:
    """Tokens per step, and beside it the speed-up, without and with the prompt as reference."""
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes if outcome.with_prompt is not None))
    figure, panels = make_axes(2, height=0.9 + 0.5 * len(methods))
    values = {"tokens per step": "tokens_per_step", "speed-up over autoregressive": "speed_up"}
    for axes, (title, value) in zip(panels, values.items(), strict=True):
        for shift, (with_prompt, label) in ((0.19, (False, "without prompt")), (-0.19, (True, "with prompt"))):
            mine = {
                outcome.method: getattr(outcome, value) for outcome in outcomes if outcome.with_prompt is with_prompt
            }
            places = [len(methods) - number + shift for number in range(len(methods))]
            bars = axes.barh(
                places, [mine[method] for method in methods], 0.36, color=COLOURS[int(with_prompt)], label=label
            )
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel(title)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
    panels[0].set_yticks([len(methods) - number for number in range(len(methods))], methods)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


if __name__ == "__main__":
    main()
