"""Measures what the host does between two steps, by parts, for trees of several sizes.

    python -m benchmarks.host_work
    python -m benchmarks.host_work --rows 1 64 --forward demo/python-11m
    python -m benchmarks.host_work --sequences 1,4,16,64

The engine, decode=auto, the tokenizer and the runner are real; the device is made up. It answers at once, from a fixed
table, so that trees are as large as --rows allows and some drafts are right. From its answers until the next forward
has all that it reads, a device waits for the host: that is `between`. The parts before it in the table are measured by
themselves, as telling them apart takes some microseconds.
`fill` makes what a forward reads of memory: that of the native forward of a CPU, or of the code that runs a GPU's
graphs, up to the launch of the first one (lp/model/gpu/cuda_graphs.py). `text` is the work that is done while the
device computes the next step: text, statistics, results. Copies to a device and the launch of its work are not part of
it, nor is the choice of tokens from logits.

Each figure is the median over --steps steps, and in brackets the 90th percentile. `warm`: one step follows the other
at once. `cold`: before each answer, memory of --sweep-mb is read, so that nothing of the host is left in the
processor's caches; with --forward, a model's forward is run and tokens are chosen from its logits, as on a CPU; with
--pause, the host sleeps, as it may while a GPU computes: then only what else the machine does takes its caches away.
The engine starts each step before it tells of the last one, as it does where a device works by itself.
`library`: the compiled C++ of lp/platform. `Python`: what runs where there is no compiler, which drafts from fewer
sources. Greedy and sampled requests differ in what the drafts are kept by.

With --sequences, so many sequences share a step, with decode=autoregressive and auto.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from transformers import GenerationConfig

from benchmarks.shared.inputs import load_engine
from benchmarks.shared.made_up_answers import CANDIDATES
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from benchmarks.steps.batch_host_work import (
    BETWEEN,
    FORWARDS,
    METHODS,
    PARTS,
    BatchSetting,
    describe_batches,
    measure_batch,
    measure_laps,
)
from launch.config.process import freeze_heap
from lp import Auto, Engine, Sampling
from lp.model.compilation import CompileMode
from lp.platform.library import python_alone
from lp.runner.step_times.measure import StepTimesSource
from lp.sampling.sampler import Sampler
from lp.tree import chain

WHOLE, MEANWHILE = "between", PARTS[-1]
VARIANTS = ("library", "Python")
# Steps of a text that are not measured, in which the sources learn.
FIRST_STEPS = 40
PROMPT_LENGTH = 128
# Rows of the forward that --forward runs.
FORWARD_ROWS = 16


@dataclass(frozen=True)
class Setting:
    """What is measured together."""

    variant: str
    temperature: float
    rows: int
    is_cold: bool
    forward: str


@dataclass
class Cost:
    """Microseconds of a step, by part. rows: of the trees, on average."""

    setting: Setting
    rows: float
    medians: dict[str, float]
    highs: dict[str, float] = field(default_factory=dict)


def main() -> None:
    arguments = parse_arguments()
    sweep = make_forward(arguments.forward) if arguments.forward else make_sweep(arguments.sweep_mb)
    if arguments.pause:
        sweep = partial(time.sleep, arguments.pause / 1000)
    measure_batches(arguments, sweep) if arguments.sequences else measure_sequence(arguments, sweep)


def after(arguments: argparse.Namespace) -> str:
    """What is added to the name of the results."""
    if arguments.pause:
        return f"-after-{arguments.pause:g}-ms"
    return f"-after-{Path(arguments.forward).name.removesuffix('.gguf')}" if arguments.forward else ""


def measure_batches(arguments: argparse.Namespace, sweep: Callable[[], object]) -> None:
    engine = load_engine(arguments.model, "float32", "cpu", CompileMode.auto, StepTimesSource.off)
    settings = [
        BatchSetting(method, temperature, sequences, forward, is_cold)
        for method in METHODS
        for temperature in (0.0, 0.8)
        for sequences in arguments.sequences
        for is_cold in (False, True)
        for forward in FORWARDS
    ]
    freeze_heap()
    shown = progress(settings, "host", "setting")
    costs = [measure_batch(engine, setting, arguments.steps, sweep) for setting in shown]
    data = {"steps": arguments.steps, "costs": [asdict(cost) for cost in costs]}
    title = "The host's work in a step of many sequences"
    publish(arguments.output, "host_work-sequences" + after(arguments), title, describe_batches(costs), data)


def measure_sequence(arguments: argparse.Namespace, sweep: Callable[[], object]) -> None:
    engine = load_engine(arguments.model, "float32", "cpu", CompileMode.auto, StepTimesSource.off)
    settings = [
        Setting(variant, temperature, rows, is_cold, forward)
        for rows in arguments.rows
        for temperature in (0.0, 0.8)
        for is_cold in (False, True)
        for forward in FORWARDS
        for variant in VARIANTS
    ]
    freeze_heap()
    costs = [measure(engine, setting, arguments.steps, sweep) for setting in progress(settings, "host", "setting")]
    data = {"steps": arguments.steps, "costs": [asdict(cost) for cost in costs]}
    name, title = "host_work" + after(arguments), "The host's work between two steps"
    publish(arguments.output, name, title, describe(costs), data)


def make_sweep(num_mb: int) -> Callable[[], object]:
    """Reads so much memory."""
    return np.ones(num_mb * 2**20 // 8).sum


def make_forward(path: str) -> Callable[[], object]:
    """Runs a model's fastest forward on FORWARD_ROWS rows after a prompt, and chooses their tokens."""
    model = load_engine(path, "auto", "cpu", CompileMode.auto, StepTimesSource.off).checkpoint.model
    prompt, tree = list(range(PROMPT_LENGTH)), chain(range(FORWARD_ROWS))
    cache = model.make_cache(PROMPT_LENGTH + FORWARD_ROWS)
    model.forward(chain(prompt), cache, 1)
    cache.keep(prompt)
    sampler = Sampler(
        Sampling(temperature=0.0, seed=0).with_defaults(GenerationConfig()), 1, [], model.vocab_size, "cpu"
    )

    def run() -> object:
        return sampler.answers(model.forward(tree, cache, FORWARD_ROWS), tree, prompt, CANDIDATES)

    run()  # the sampler keeps how it answers, before it is measured as that of a GPU
    return run


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 16, 64, 128], help="rows of a step's tree (default 1 16 64 128)"
    )
    parser.add_argument(
        "--sequences", type=ascending_numbers, help="numbers of sequences that share a step, like 1,4,16,64"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps that are measured (default 60)")
    parser.add_argument(
        "--sweep-mb", type=int, default=512, help="memory that is read before each cold step (default 512)"
    )
    parser.add_argument(
        "--forward", metavar="MODEL", help="run this model's forward before each cold step instead of reading memory"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="sleep so many ms before each cold step instead")
    parser.add_argument("--model", default="demo/python-11m", help="whose tokenizer is used (default demo/python-11m)")
    add_output(parser)
    arguments = parse(parser)
    for name, least in (("rows", 1), ("steps", 2), ("sweep_mb", 1)):
        if (lowest := np.min(getattr(arguments, name))) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {lowest}")
    return arguments


def measure(engine: Engine, setting: Setting, num_steps: int, sweep: Callable[[], object]) -> Cost:
    """Measures the steps of one text, and those of another to tell settling and planning apart."""
    decode = Auto(rows=setting.rows, max_rows=setting.rows, candidates=CANDIDATES)
    with nullcontext() if setting.variant == "library" else python_alone():
        laps, watched = (
            measure_laps(
                engine, decode, setting.temperature, 1, setting.forward, num_steps, sweep if setting.is_cold else None,
                FIRST_STEPS, None, is_watched,
            )
            for is_watched in (False, True)
        )  # fmt: skip
    cost = Cost(setting, sum(lap["rows"] for lap in laps) / len(laps), {})
    seconds = {part: [lap[part] for lap in watched] for part in PARTS}
    seconds[WHOLE] = [sum(lap[part] for part in BETWEEN) for lap in laps]
    for part, values in seconds.items():
        cost.medians[part] = round(1e6 * median(values), 1)
        cost.highs[part] = round(1e6 * quantiles(values, n=10)[-1], 1)
    return cost


def describe(costs: list[Cost]) -> str:
    """A table for the greedy requests and one for the sampled ones, with a line for each setting."""
    tables = ["Microseconds of a step: the median, and in brackets the 90th percentile."]
    columns = ["rows", "caches", "", "inputs for", *BETWEEN, WHOLE, MEANWHILE]
    for temperature in dict.fromkeys(cost.setting.temperature for cost in costs):
        lines = [
            [
                f"{cost.setting.rows} ({cost.rows:.0f})",
                "cold" if cost.setting.is_cold else "warm",
                cost.setting.variant,
                cost.setting.forward,
                *(f"{cost.medians[part]:.0f}" for part in BETWEEN),
                *(f"{cost.medians[part]:.0f} ({cost.highs[part]:.0f})" for part in (WHOLE, MEANWHILE)),
            ]
            for cost in costs
            if cost.setting.temperature == temperature
        ]
        tables += [
            f"temperature {temperature:g}; beside the rows allowed, those of the trees:",
            markdown_table(columns, lines, 4),
        ]
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
