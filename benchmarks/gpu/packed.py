"""Measures steps of many sequences in one forward, against a step of one: a shape with random weights, graphs or not.

It is an item of benchmarks.gpu, which starts it. Every sequence has pages and cached tokens of its own.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.gpu.steps import MILLI, count_launches
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.options import ascending_numbers
from benchmarks.shared.report import markdown_table, progress
from benchmarks.shared.shapes import describe_shape
from benchmarks.steps.machine_rates import time_once
from benchmarks.steps.measured_model import make_measured
from benchmarks.steps.step_curve import make_tree
from benchmarks.steps.variants import ModelVariant, make_variant
from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode
from lp.model.fast_forward import SequenceRows
from lp.model.kernels import AttentionKind


@dataclass
class PackedSample:
    """Forwards of so many sequences with so many rows each, with logits for all. seconds: one reading for each."""

    sequences: int
    rows_each: int
    seconds: list[float] = field(default_factory=list)
    kernels: int = 0
    launches: int = 0

    @property
    def ms(self) -> float:
        return median(self.seconds) * MILLI


def run() -> None:
    arguments = parse_arguments()
    most, rows = arguments.sequences[-1], arguments.rows_each[-1]
    with make_measured(
        arguments.config,
        arguments.dtype,
        arguments.device,
        arguments.cached + rows,
        most * (arguments.cached + rows),
        1,
    ) as (checkpoint, folder):
        variant = ModelVariant(AttentionKind.auto, CompileMode(arguments.compile))
        model = make_variant(variant, checkpoint.model, folder)
        caches = [fill_cache(model, arguments.cached, rows) for _ in range(most)]
        samples = measure(model, caches, arguments)
        write(
            arguments.output, f"{describe_shape(model.model.config)}, {variant.name(model)}", arguments.cached, samples
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--compile", default="on", choices=["off", "on"])
    parser.add_argument("--sequences", type=ascending_numbers, required=True)
    parser.add_argument("--rows-each", type=ascending_numbers, required=True)
    parser.add_argument("--cached", type=int, required=True, help="tokens of each sequence")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def measure(model: CausalModel, caches: list[KVCache], arguments: argparse.Namespace) -> list[PackedSample]:
    """Measures in rounds, so that other work on the machine slows all alike. The first round is a warm-up."""
    samples = [PackedSample(count, rows) for rows in arguments.rows_each for count in arguments.sequences]
    runs = []
    for sample in samples:
        tree = make_tree(model, sample.rows_each)
        given = [SequenceRows(tree, cache, len(tree)) for cache in caches[: sample.sequences]]
        runs.append(partial(model.forward_many, given))
    for number in progress(range(1 + arguments.rounds), "measuring", unit="round"):
        for sample, forward in zip(samples, runs, strict=True):
            seconds = time_once(forward, model.device)
            if number:
                sample.seconds.append(seconds)
    for sample, forward in zip(samples, runs, strict=True):
        counted = count_launches(forward, model.device)
        sample.kernels, sample.launches = counted["kernels"], counted["launches"]
    return samples


def write(folder: Path, what: str, cached: int, samples: list[PackedSample]) -> None:
    first, last = samples[0], max(samples, key=lambda one: (one.rows_each == samples[0].rows_each, one.sequences))
    summary = (
        f"{last.sequences} sequences of {last.rows_each} row: {last.ms:.2f} ms, "
        f"{last.ms / first.ms:.2f} times a step of {first.sequences}"
    )
    data = {"summary": summary, "model": what, "cached": cached, "samples": [vars(one) for one in samples]}
    (folder / "packed.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / "packed.md").write_text(f"# Packed steps\n\n{describe(what, cached, samples)}\n", encoding="utf-8")


def describe(what: str, cached: int, samples: list[PackedSample]) -> str:
    of_one = {one.rows_each: one.ms for one in reversed(samples)}
    columns = ["sequences", "rows each", "ms", "of one", "rows per second", "kernels", "launches"]
    rows = [
        (one.sequences, one.rows_each, f"{one.ms:.3f}", f"{one.ms / of_one[one.rows_each]:.2f}",
         f"{one.sequences * one.rows_each / one.ms * MILLI:,.0f}", one.kernels, one.launches)
        for one in samples
    ]  # fmt: skip
    return f"{what}; each sequence has {cached:,} cached tokens of its own.\n\n{markdown_table(columns, rows)}"


if __name__ == "__main__":
    run()
