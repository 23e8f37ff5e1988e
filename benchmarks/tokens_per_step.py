"""Tokens per step, rows per step and tokens per second of each decoding method, on the prompts of a JSONL file.

    python -m benchmarks.tokens_per_step --prompts prompts.jsonl --limit 100 --max-new-tokens 128

Rows that are given are used whatever they cost; "arg max" fills the window without the noise of its positions, as the
paper does. The methods, transformers' own greedy `generate` and its prompt look-up take turns on every prompt, in an
order that rotates. In float32 every text must be the same (with a temperature, the same as autoregressive decoding's);
otherwise the exit status is 1. Prints a table and writes it, with all figures, to --output.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.shared.report import (
    encode,
    generate,
    load_both,
    make_parser,
    markdown_table,
    progress,
    publish,
    read_prompts,
)
from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.methods import DecodeSettings
from lp.model.checkpoint import DTYPES

AUTOREGRESSIVE = "autoregressive"
METHODS: dict[str, DecodeSettings] = {
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
GENERATE = "transformers generate"
GENERATE_LOOKUP = "transformers prompt lookup (10)"


@dataclass
class Run:
    """One text by one method."""

    tokens: list[int]
    steps: int
    rows: int
    seconds: float = 0.0
    proposed: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)


@dataclass
class Figures:
    """All texts of one method. speed_up: its tokens per second over those of transformers' `generate`."""

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


Contender = Callable[[list[int], int], Run]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; the next have the next (default 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine, model = load_both(arguments.model, arguments.dtype, arguments.device)
    contenders = make_contenders(engine, model, arguments.temperature, arguments.max_new_tokens)
    prompts = encode(engine, read_prompts(arguments.prompts, arguments.limit), arguments.max_new_tokens)
    runs = run_all(contenders, prompts, arguments.seed)
    figures = summarise(runs, expected=AUTOREGRESSIVE if arguments.temperature else GENERATE)
    num_different = sum(len(prompts) - row.same_text for row in figures if row.method in METHODS)
    publish(
        arguments.output,
        f"tokens_per_step-{engine.checkpoint.name}-{arguments.dtype}-T{arguments.temperature:g}",
        f"Tokens per step: {engine.checkpoint.name}, {arguments.dtype}, temperature {arguments.temperature:g}",
        describe(figures, len(prompts), arguments.max_new_tokens, sampled=arguments.temperature > 0),
        {
            "settings": {name: asdict(how) for name, how in METHODS.items()},
            "figures": [asdict(row) for row in figures],
            "prompts": {name: [{**asdict(run), "tokens": len(run.tokens)} for run in runs[name]] for name in runs},
        },
    )
    if num_different and arguments.dtype == "float32":
        print(f"{num_different} texts are not the same, which in float32 they must be", file=sys.stderr)
        raise SystemExit(1)


def make_contenders(
    engine: Engine, model: PreTrainedModel, temperature: float, max_new_tokens: int
) -> dict[str, Contender]:
    generation: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature:
        generation |= {"temperature": temperature, "top_k": 0}

    def by_engine(how: DecodeSettings) -> Contender:
        def run(prompt: list[int], seed: int) -> Run:
            sampling = Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
            completion = engine.generate(prompt, decode=how, sampling=sampling, stopping=Stopping(max_new_tokens))
            stats = completion.stats
            return Run(completion.token_ids, stats.steps, stats.rows, 0.0, dict(stats.proposed), dict(stats.accepted))

        return run

    def by_generate(**more: Any) -> Contender:
        return lambda prompt, seed: generate_counted(model, prompt, seed, {**generation, **more})

    contenders = {GENERATE: by_generate(), GENERATE_LOOKUP: by_generate(prompt_lookup_num_tokens=10)}
    return contenders | {name: by_engine(how) for name, how in METHODS.items()}


def generate_counted(model: PreTrainedModel, prompt: list[int], seed: int, settings: dict[str, Any]) -> Run:
    """A text by transformers, with its forward passes counted; the prompt's rows are not, as in lp's statistics."""
    rows: list[int] = []

    def count(module, arguments, keywords):
        rows.append(keywords["input_ids"].shape[1])

    torch.manual_seed(seed)
    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        tokens = generate(model, prompt, **settings)
    finally:
        hook.remove()
    return Run(tokens, len(rows), sum(rows) - len(prompt) + 1)


def run_all(contenders: dict[str, Contender], prompts: list[list[int]], seed: int) -> dict[str, list[Run]]:
    for contender in contenders.values():
        contender(prompts[0], seed)  # not counted: the first text pays for what is made once
    names = list(contenders)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number, prompt in enumerate(progress(prompts, "tokens per step")):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            run = contenders[name](prompt, seed + number)
            run.seconds = time.perf_counter() - begin
            runs[name].append(run)
    return runs


def summarise(runs: dict[str, list[Run]], expected: str) -> list[Figures]:
    """expected: the method whose texts the others' must be."""

    def tokens_per_s(name: str) -> float:
        return sum(len(run.tokens) for run in runs[name]) / sum(run.seconds for run in runs[name])

    figures = []
    for name, mine in runs.items():
        tokens, steps = sum(len(run.tokens) for run in mine), sum(run.steps for run in mine)
        proposed, accepted = Counter[str](), Counter[str]()
        for run in mine:
            proposed.update(run.proposed)
            accepted.update(run.accepted)
        figures.append(
            Figures(
                method=name,
                tokens=tokens,
                steps=steps,
                seconds=round(sum(run.seconds for run in mine), 3),
                tokens_per_step=round(tokens / steps, 3),
                rows_per_step=round(sum(run.rows for run in mine) / steps, 2),
                tokens_per_s=round(tokens_per_s(name), 2),
                speed_up=round(tokens_per_s(name) / tokens_per_s(GENERATE), 3),
                same_text=sum(run.tokens == right.tokens for run, right in zip(mine, runs[expected], strict=True)),
                proposed=dict(proposed),
                accepted=dict(accepted),
            )
        )
    return figures


def describe(figures: list[Figures], num_prompts: int, max_new_tokens: int, sampled: bool) -> str:
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
            f"{num_prompts} prompts, up to {max_new_tokens} new tokens each. Speed-up: tokens per second over those of "
            f"`{GENERATE}` in the same run, the prompt's reading included. Same text: as `{reference}`.",
            markdown_table(columns, rows),
            "Draft tokens accepted / proposed, by source (a window cell counts once it is accepted):",
            markdown_table(["method", *sources], drafts),
        ]
    )


if __name__ == "__main__":
    main()
