"""Measures what each branch of lookahead decoding is worth, as the paper's ablation does.

    python -m benchmarks.paper.ablation --prompts prompts.jsonl --limit 50

This is table 3 of arXiv 2402.02057. The paper writes a setting as (N, W, G): (5, 1, 30) has 5-grams, a window of one
column and 30 guesses. So (5, 1, 30) nearly removes the lookahead branch, (5, 30, 1) nearly removes the verification
branch, and (5, 15, 15) balances them. Settings on the command line and in the table are in the paper's order; the rest
of this project writes (W, N, G).

Each setting is run with and without the prompt as reference, that is, with and without the prompt's n-grams in the
pool. Prompt look-up has no window: its pool is the generated text and, as reference, the prompt. Lookahead's pool has
the generated text's n-grams only with --generated-drafts: the paper's pool does not have them, this project's has them
by default. Decoding is greedy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from matplotlib.figure import Figure

from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, MethodTotals
from benchmarks.shared.greedy import check_methods, compare_on_prompts
from benchmarks.shared.options import make_prompts_parser, pair, parse, triple
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import markdown_table, publish
from lp import Autoregressive, Lookahead, PromptLookup
from lp.model.checkpoint import DTYPES
from lp.request import DecodingMethod


@dataclass(frozen=True)
class AblationEntry:
    """A line of the table to come.

    with_prompt: whether the prompt is the reference; None for a method that has no reference.
    """

    method: str
    with_prompt: bool | None
    decode: DecodingMethod

    @property
    def name(self) -> str:
        return self.method + {None: "", False: " without prompt", True: " with prompt"}[self.with_prompt]


@dataclass(frozen=True)
class AblationRow:
    """A line of the table. speed_up: tokens per second divided by those of autoregressive decoding in the same run."""

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
    methods = {entry.name: entry.decode for entry in entries}
    check_methods(parser, methods.values())
    comparison = compare_on_prompts(arguments, methods)
    outcomes = summarise(entries, comparison.totals)
    name = comparison.engine.checkpoint.name
    publish(
        arguments.output,
        f"ablation-{name}-{arguments.dtype}{'-generated' if arguments.generated_drafts else ''}",
        f"Ablation of lookahead decoding: {name}, {arguments.dtype}",
        describe(outcomes, comparison.num_prompts, arguments.max_new_tokens),
        {"outcomes": [asdict(outcome) for outcome in outcomes]},
        plot(outcomes),
    )
    comparison.demand_same_texts()


def make_arguments() -> argparse.ArgumentParser:
    parser = make_prompts_parser(__doc__)
    parser.set_defaults(limit=50)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument(
        "--settings",
        type=triple,
        nargs="+",
        default=[(5, 1, 30), (5, 30, 1), (5, 15, 15)],
        metavar="N,W,G",
        help="settings of lookahead decoding, in the paper's order (default 5,1,30 5,30,1 5,15,15)",
    )
    parser.add_argument(
        "--lookup",
        type=pair,
        nargs="+",
        default=[(5, 30)],
        metavar="N,G",
        help="settings of prompt look-up (default 5,30)",
    )
    parser.add_argument(
        "--generated-drafts", action="store_true", help="add the generated text's n-grams to lookahead's pool"
    )
    return parser


def make_entries(arguments: argparse.Namespace) -> list[AblationEntry]:
    """Autoregressive decoding comes first: the others are compared with it."""
    entries = [AblationEntry(AUTOREGRESSIVE, None, Autoregressive())]
    for ngram, guesses in arguments.lookup:
        for with_prompt in (False, True):
            decode = PromptLookup(ngram, guesses, prompt_drafts=with_prompt)
            entries.append(AblationEntry(f"prompt look-up ({ngram}, {guesses})", with_prompt, decode))
    for ngram, window, guesses in arguments.settings:
        for with_prompt in (False, True):
            feeds = {"prompt_drafts": with_prompt, "generated_drafts": arguments.generated_drafts}
            decode = Lookahead(window, ngram, guesses, **feeds)
            entries.append(AblationEntry(f"lookahead ({ngram}, {window}, {guesses})", with_prompt, decode))
    return entries


def summarise(entries: list[AblationEntry], totals: Mapping[str, MethodTotals]) -> list[AblationRow]:
    base = totals[entries[0].name]
    return [
        AblationRow(
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


def describe(outcomes: list[AblationRow], num_prompts: int, max_new_tokens: int) -> str:
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
        "paper, (N, G) for prompt look-up. Speed-up: tokens per second divided by those of autoregressive decoding in "
        "the same run; both include the prefill. Same text: number of texts that equal autoregressive decoding's.\n\n"
        + markdown_table(columns, rows, num_text=2)
    )


def plot(outcomes: list[AblationRow]) -> Figure:
    """A panel of tokens per step and one of the speed-up, without and with the prompt as reference."""
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes if outcome.with_prompt is not None))
    figure, panels = make_axes(2, height=0.9 + 0.5 * len(methods))
    values = {"tokens per step": "tokens_per_step", "speed-up over autoregressive": "speed_up"}
    for axes, (title, value) in zip(panels, values.items(), strict=True):
        for shift, (with_prompt, label) in ((0.19, (False, "without prompt")), (-0.19, (True, "with prompt"))):
            drawn = {
                outcome.method: getattr(outcome, value) for outcome in outcomes if outcome.with_prompt is with_prompt
            }
            places = [len(methods) - number + shift for number in range(len(methods))]
            bars = axes.barh(
                places, [drawn[method] for method in methods], 0.36, color=COLOURS[int(with_prompt)], label=label
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
