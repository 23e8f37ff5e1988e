"""Measures tokens per step, rows per step and tokens per second of each decoding method.

    python -m benchmarks.tokens_per_step --prompts prompts.jsonl --limit 100 --max-new-tokens 128

The prompts are those of a JSONL file. A method that names a number of rows uses that many, whatever they cost; "arg
max" fills the window without the noise of its positions, as the paper does. The methods, transformers' own `generate`
and its prompt look-up take turns on every prompt, in an order that rotates.

In float32 every method must give the same text as `generate`, or, with a temperature, as autoregressive decoding;
otherwise the exit status is 1. With --oracle, a second table says what the trees of decode=auto lack: tokens that no
source proposed, or that were cut. Prints a table and writes it, with all figures, to --output.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict, dataclass

from benchmarks.shared.decoded_texts import (
    AUTOREGRESSIVE,
    GENERATE,
    DecodedText,
    add_up,
    take_turns,
)
from benchmarks.shared.draft_oracle import OracleTally, describe_oracle, tally_oracle
from benchmarks.shared.inputs import encode, load_engine_and_reference, read_prompts
from benchmarks.shared.methods import DecodePrompt, make_methods, sampling_at, timed
from benchmarks.shared.options import make_prompts_parser, parse
from benchmarks.shared.report import markdown_table, publish
from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, Medusa, PromptLookup
from lp.model.checkpoint import DTYPES
from lp.request import DecodingMethod

METHODS: dict[str, DecodingMethod] = {
    AUTOREGRESSIVE: Autoregressive(),
    "auto": Auto(),
    "auto, 64 rows": Auto(rows=64),
    "auto, 128 rows": Auto(rows=128),
    "jacobi (8)": Jacobi(8),
    "prompt_lookup (5, 7)": PromptLookup(5, 7),
    "lookahead (7, 5, 7)": Lookahead(7, 5, 7),
    "lookahead (15, 5, 15)": Lookahead(15, 5, 15),
    "lookahead (15, 5, 15), arg max": Lookahead(15, 5, 15, position_noise=False),
}

# For a model with heads.
WITH_HEADS: dict[str, DecodingMethod] = {"medusa, 16 rows": Medusa(), "medusa, 32 rows": Medusa(max_rows=32)}


@dataclass
class MethodFigures:
    """What all texts of one method show.

    speed_up: its tokens per second divided by those of transformers' `generate`. same_text: number of texts that are
    the expected ones. proposed, accepted: draft tokens by their source.
    """

    method: str
    tokens: int
    steps: int
    seconds: float
    tokens_per_step: float
    rows_per_step: float
    tokens_per_s: float
    speed_up: float
    same_text: int
    proposed: dict[str, int]
    accepted: dict[str, int]


def main() -> None:
    parser = make_prompts_parser(__doc__)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy decoding (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first prompt; each next prompt takes the next (default 0)"
    )
    parser.add_argument(
        "--oracle", action="store_true", help="compare the trees of decode=auto with those of right proposals alone"
    )
    arguments = parse(parser, keep_memory=False)
    engine, model = load_engine_and_reference(arguments.model, arguments.dtype, arguments.device)
    own = METHODS | (WITH_HEADS if engine.checkpoint.heads else {})
    methods = make_methods(engine, model, own, arguments.temperature, arguments.max_new_tokens)
    prompts = encode(engine, read_prompts(arguments.prompts, arguments.limit), arguments.max_new_tokens)
    texts = decode_all(methods, prompts, arguments.seed)
    figures = summarise(texts, expected=AUTOREGRESSIVE if arguments.temperature else GENERATE)
    table = describe(figures, len(prompts), arguments.max_new_tokens, sampled=arguments.temperature > 0)
    if arguments.oracle:
        right = [text.tokens for text in texts[AUTOREGRESSIVE]]
        tallies = consult_oracle(engine, prompts, right, arguments.temperature, arguments.seed)
        table += "\n\n" + describe_oracle(tallies)
    num_different = sum(len(prompts) - row.same_text for row in figures if row.method in own)
    publish(
        arguments.output,
        f"tokens_per_step-{engine.checkpoint.name}-{arguments.dtype}-T{arguments.temperature:g}",
        f"Tokens per step: {engine.checkpoint.name}, {arguments.dtype}, temperature {arguments.temperature:g}",
        table,
        {
            "settings": {name: asdict(decode) for name, decode in own.items()},
            "figures": [asdict(row) for row in figures],
            "prompts": {
                name: [{**asdict(text), "tokens": len(text.tokens)} for text in some] for name, some in texts.items()
            },
        },
    )
    if num_different and arguments.dtype == "float32":
        print(f"in float32 all texts must be the same, but {num_different} differ", file=sys.stderr)
        raise SystemExit(1)


def consult_oracle(
    engine: Engine, prompts: list[list[int]], texts: list[list[int]], temperature: float, seed: int
) -> dict[str, OracleTally]:
    """The tallies of the methods of decode=auto that name a number of rows, by the methods' names."""
    tallies = {name: OracleTally() for name, decode in METHODS.items() if isinstance(decode, Auto) and decode.rows}
    for name, tally in tallies.items():
        decode = METHODS[name]
        assert isinstance(decode, Auto)
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            tally_oracle(engine, decode, prompt, text, sampling_at(temperature, seed + number), tally)
    return tallies


def decode_all(methods: dict[str, DecodePrompt], prompts: list[list[int]], seed: int) -> dict[str, list[DecodedText]]:
    """The texts of each method, timed by one clock for all methods."""
    for decode in methods.values():
        decode(prompts[0], seed)  # not counted: the first text pays for what is made only once

    return take_turns({name: timed(decode, seed) for name, decode in methods.items()}, prompts)


def summarise(texts: dict[str, list[DecodedText]], expected: str) -> list[MethodFigures]:
    """expected: the method whose texts all others should give."""
    totals = {name: add_up(own, texts[expected]) for name, own in texts.items()}
    figures = []
    for name, total in totals.items():
        proposed, accepted = Counter[str](), Counter[str]()
        for text in texts[name]:
            proposed.update(text.proposed)
            accepted.update(text.accepted)
        figures.append(
            MethodFigures(
                method=name,
                tokens=total.tokens,
                steps=total.steps,
                seconds=round(total.seconds, 3),
                tokens_per_step=round(total.tokens_per_step, 3),
                rows_per_step=round(total.rows_per_step, 2),
                tokens_per_s=round(total.tokens_per_s, 2),
                speed_up=round(total.tokens_per_s / totals[GENERATE].tokens_per_s, 3),
                same_text=total.same_text,
                proposed=dict(proposed),
                accepted=dict(accepted),
            )
        )
    return figures


def describe(figures: list[MethodFigures], num_prompts: int, max_new_tokens: int, sampled: bool) -> str:
    columns = ["method", "tokens/step", "rows/step", "tokens/s", "speed-up", "same text"]
    rows = [
        (
            row.method,
            f"{row.tokens_per_step:.2f}",
            f"{row.rows_per_step:.1f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.speed_up:.2f}x",
            f"{row.same_text}/{num_prompts}",
        )
        for row in figures
    ]
    sources = sorted({source for row in figures for source in row.proposed})
    drafts = [
        (row.method, *(f"{row.accepted.get(source, 0)}/{row.proposed.get(source, 0)}" for source in sources))
        for row in figures
        if row.proposed
    ]
    reference = AUTOREGRESSIVE if sampled else GENERATE
    return "\n\n".join(
        [
            f"{num_prompts} prompts, up to {max_new_tokens} new tokens each. Speed-up: tokens per second divided by "
            f"those of `{GENERATE}` in the same run; both include the prefill. Same text: number of texts that equal "
            f"those of `{reference}`.",
            markdown_table(columns, rows),
            "Draft tokens accepted / proposed, by source (a window cell is counted only if it is accepted):",
            markdown_table(["method", *sources], drafts),
        ]
    )


if __name__ == "__main__":
    main()
