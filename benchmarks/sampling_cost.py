"""Measures the time to choose a step's tokens, by sampling settings, vocabulary size and rows.

    python -m benchmarks.sampling_cost
    python -m benchmarks.sampling_cost --device cuda --rows 1 16 64 128

A measurement covers processors, noise, arg max and the transfer back to the host. The logits are made up: `sharp` ones,
sorted by size, fall as a trained model's do, so that at temperature 0.8 some tens of tokens hold 95% of the
probability; `flat` ones are those of an untrained model, where top-p has to keep most of the vocabulary. The text grows
by --accepted tokens per step, so each step has new noise to make. For comparison, transformers' warpers process the
same logits, without drawing a token. All settings take turns within one run, and the table shows the median of their
times. Prints a table and writes it to --output.

Shapes: R rows of the step's tree, V vocabulary, L tokens of the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import cast

import numpy as np
import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import GenerationConfig

from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.processors import context_processors, warpers
from benchmarks.shared.report import markdown_table, progress, publish
from lp import Sampling
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree, TreeBuilder

# Tokens of the text before the first step.
TEXT_LENGTH = 512


@dataclass(frozen=True)
class SamplingSetting:
    """What is measured. logits: their kind. num_candidates: best tokens asked for besides the target."""

    name: str
    sampling: Sampling
    logits: str = "sharp"
    num_candidates: int = 0


SETTINGS = [
    SamplingSetting("greedy", Sampling(temperature=0.0)),
    SamplingSetting("greedy, 8 candidates", Sampling(temperature=0.0), num_candidates=8),
    SamplingSetting("greedy, repetition penalty 1.1", Sampling(temperature=0.0, repetition_penalty=1.1)),
    SamplingSetting("T=0.8", Sampling(temperature=0.8)),
    SamplingSetting("T=0.8, 8 candidates", Sampling(temperature=0.8), num_candidates=8),
    SamplingSetting("T=0.8, top-k 50", Sampling(temperature=0.8, top_k=50)),
    SamplingSetting("T=0.8, top-p 0.95", Sampling(temperature=0.8, top_p=0.95)),
    SamplingSetting("T=0.8, top-k 50, top-p 0.95", Sampling(temperature=0.8, top_k=50, top_p=0.95)),
    SamplingSetting("T=0.8, min-p 0.05", Sampling(temperature=0.8, min_p=0.05)),
    SamplingSetting("T=0.8, top-p 0.95, flat", Sampling(temperature=0.8, top_p=0.95), logits="flat"),
]


@dataclass(frozen=True)
class SamplingCost:
    """Milliseconds that a step takes.

    warpers_ms: milliseconds of transformers' processors alone; None for a setting that needs none.
    """

    setting: str
    vocab_size: int
    rows: int
    ms: float
    warpers_ms: float | None


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    costs = [
        cost
        for vocab_size in arguments.vocab
        for rows in arguments.rows
        for cost in measure(vocab_size, rows, device, arguments.accepted, arguments.seconds)
    ]
    name = "sampling_cost" + ("" if device.type == "cpu" else f"-{device.type}")
    data = {"accepted": arguments.accepted, "costs": [asdict(cost) for cost in costs]}
    publish(arguments.output, name, "The cost of choosing a step's tokens", describe(costs, arguments.accepted), data)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--vocab", type=int, nargs="+", default=[32_000, 151_936], help="vocabulary sizes (default 32000 151936)"
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 16, 128], help="rows of a step's tree (default 1 16 128)"
    )
    parser.add_argument("--accepted", type=int, default=3, help="tokens by which a step grows the text (default 3)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=6.0,
        help="time to spend on each vocabulary size and number of rows (default 6)",
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="default cpu")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    for name in ("vocab", "rows", "accepted"):
        if np.min(getattr(arguments, name)) < 1:
            parser.error(f"--{name} must be at least 1, not {np.min(getattr(arguments, name))}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; use --device cpu")
    return arguments


def measure(vocab_size: int, num_rows: int, device: torch.device, accepted: int, seconds: float) -> list[SamplingCost]:
    """Measures every setting once in each round, and its warpers, which can be slow, only in the first rounds."""
    tree = make_tree(num_rows)
    logits = {kind: make_logits(kind, num_rows, vocab_size).to(device) for kind in ("sharp", "flat")}
    steps = [SettingSteps(setting, logits[setting.logits], tree, accepted) for setting in SETTINGS]
    for each in steps:
        each.answer()
        each.warp()
    times: list[list[float]] = [[] for _ in steps]
    baselines: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    for number in progress(range(1000), f"{vocab_size} x {num_rows}", unit="round"):
        for each, own, baseline in zip(steps, times, baselines, strict=True):
            own.append(timed(each.answer, device))
            if number < 3:
                baseline.append(timed(each.warp, device))
        if number >= 4 and time.perf_counter() > end:
            break
    return [
        SamplingCost(
            each.setting.name,
            vocab_size,
            num_rows,
            round(median(own), 3),
            round(median(baseline), 3) if each.has_processors else None,
        )
        for each, own, baseline in zip(steps, times, baselines, strict=True)
    ]


class SettingSteps:
    """The steps of one setting, one after the other in a growing text."""

    def __init__(self, setting: SamplingSetting, logits_RV: Tensor, tree: TokenTree, accepted: int):
        self.setting = setting
        self.logits_RV = logits_RV
        self.tree = tree
        self.accepted = accepted
        self.text = np.random.default_rng(0).integers(0, logits_RV.shape[1], TEXT_LENGTH).tolist()
        sampling = dataclasses.replace(setting.sampling, seed=1).with_defaults(GenerationConfig())
        device, vocab_size = str(logits_RV.device), logits_RV.shape[1]
        self.sampler = Sampler(sampling, TEXT_LENGTH, [2], vocab_size, device)
        self.processors = [*context_processors(sampling, TEXT_LENGTH, [2]), *warpers(sampling)]
        self.paths_RL = cast(LongTensor, torch.tensor([self.text] * len(tree), device=logits_RV.device))

    @property
    def has_processors(self) -> bool:
        return bool(self.processors)

    def answer(self) -> None:
        self.sampler.answers(self.logits_RV, self.tree, self.text, self.setting.num_candidates)
        self.text += self.text[: self.accepted]

    def warp(self) -> None:
        scores_RV = cast(FloatTensor, self.logits_RV)
        for processor in self.processors:
            scores_RV = processor(self.paths_RL, scores_RV)


def timed(work: Callable[[], None], device: torch.device) -> float:
    """Milliseconds until the device has done the work."""
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def make_tree(num_rows: int) -> TokenTree:
    """A tree with about four rows at each depth, as drafts and a window give."""
    builder = TreeBuilder(5)
    for row in range(1, num_rows):
        builder.add(row, max(0, row - 4))
    return builder.build()


def make_logits(kind: str, num_rows: int, vocab_size: int) -> Tensor:
    """Made-up logits of one kind, [R, V] float32."""
    generator = torch.Generator().manual_seed(0)
    scatter = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "flat":
        return scatter
    falling = 20 - 1.5 * torch.arange(1, vocab_size + 1).log()
    orders = torch.stack([torch.randperm(vocab_size, generator=generator) for _ in range(num_rows)])
    return falling[orders] + 0.3 * scatter


def describe(costs: list[SamplingCost], accepted: int) -> str:
    """Tables with a line for each setting: milliseconds of a step and microseconds of one of its rows."""
    sizes = list(dict.fromkeys((cost.vocab_size, cost.rows) for cost in costs))
    found = {(cost.setting, cost.vocab_size, cost.rows): cost for cost in costs}
    tables = [
        "Milliseconds per step, in brackets microseconds per row. The text grows by "
        f"{accepted} tokens per step, so each step makes noise for as many positions."
    ]
    columns = ["", *(f"{vocab_size:,} x {rows}" for vocab_size, rows in sizes)]
    rows = [[setting.name, *(per_row(found[setting.name, *size]) for size in sizes)] for setting in SETTINGS]
    tables.append(markdown_table(columns, rows))
    tables.append("transformers' processors alone on the same logits, without drawing or transfer:")
    compared = [setting for setting in SETTINGS if found[setting.name, *sizes[0]].warpers_ms is not None]
    baselines = [[one.name, *(f"{found[one.name, *size].warpers_ms:.2f}" for size in sizes)] for one in compared]
    tables.append(markdown_table(columns, baselines))
    return "\n\n".join(tables)


def per_row(cost: SamplingCost) -> str:
    return f"{cost.ms:.2f} ({cost.ms / cost.rows * 1e3:.0f})"


if __name__ == "__main__":
    main()
