"""Measures what the host does between two steps, by parts, for trees of several sizes.

    python -m benchmarks.host_work
    python -m benchmarks.host_work --rows 1 64 --forward demo/python-11m
    python -m benchmarks.host_work --sequences 1,4,16,64

The engine, decode=auto and the tokenizer are real; the device is made up. It answers at once, from a fixed table, so
that trees are as large as --rows allows and some drafts are right. Between its answers and the next step's inputs, a
device waits for the host: that is `between`, the sum of the parts before it in the table. `meanwhile` is the work that
is done while the device computes the next step: text, statistics, results. Copies to a device are not part of it.

Each figure is the median over --steps steps, and in brackets the 90th percentile. `warm`: one step follows the other
at once. `cold`: before each answer, memory of --sweep-mb is read, so that nothing of the host is left in the
processor's caches; with --forward, a model's forward is run and tokens are chosen from its logits, as on a CPU.
`library`: the compiled code of lp/host. `Python`: what runs where there is no compiler. The variants take turns.
Greedy and sampled requests differ in what the drafts are kept by.

With --sequences, so many sequences share a step, with decode=autoregressive and auto, and the parts are those of
benchmarks/steps/batch_host_work.py.

Shapes: R rows of a step's tree, K candidates of each row
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import numpy as np
from transformers import GenerationConfig

from benchmarks.shared.inputs import load_engine
from benchmarks.shared.made_up_answers import CANDIDATES, NUM_TOKENS, FollowersTable, Stopwatch
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from benchmarks.steps.batch_host_work import FORWARDS, METHODS, BatchSetting, describe_batches, measure_batch
from launch.program.process import freeze_heap
from lp import Auto, Engine, Sampling, Stopping
from lp.calibration.measure import StepTimesSource
from lp.host.library import python_alone
from lp.model.fast.choose import CompileMode
from lp.model.kv_cache import KVCache
from lp.request import Sequence
from lp.runner import StepInput
from lp.sampling.sampler import Sampler
from lp.single_device import SequenceState
from lp.tree import chain
from lp.verification import Answers

# Parts of `between`, in their order: walking down the tree and learning from its answers, planning the next tree, the
# paths of accepted rows and the next inputs, and everything else.
PARTS = ("walk and learn", "plan", "inputs", "rest")
BETWEEN, MEANWHILE = "between", "meanwhile"
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


@dataclass
class Cost:
    """Microseconds of a step, by part. rows: of the trees, on average."""

    setting: Setting
    rows: float
    medians: dict[str, float]
    highs: dict[str, float] = field(default_factory=dict)


class NoCache:
    """Stands for a KV cache: it counts rows."""

    length = 0

    def take_eviction(self) -> bool:
        return False

    def keep(self, rows: list[int]) -> None:
        self.length += len(rows)


class MadeUpDevice:
    """A Runner that makes a step's inputs as lp/single_device.py does, and answers from a table of followers."""

    depth = num_parts = num_replicas = 1
    is_asynchronous = True
    cache_bytes = 0

    def __init__(self, watch: Stopwatch, sweep: Callable[[], object]):
        self.watch, self.sweep = watch, sweep
        self.followers = FollowersTable()
        self.state: SequenceState
        self.step: StepInput
        self._answered = self._started = 0.0

    def open(self, sequence: Sequence) -> None:
        self.state = SequenceState(cast(KVCache, NoCache()), cast(Any, None))
        self.state.cache.length = len(sequence.tokens) - 1
        self._answered = self._started = 0.0

    def start(self, steps: list[StepInput]) -> None:
        begin = time.perf_counter()
        (self.step,) = steps
        tokens = self.step.sequence.tokens
        self.state.keep_accepted(tokens)
        self.state.attach(self.step).inputs(self.state.cache.length)
        self._started = time.perf_counter()
        if self._answered:
            self.watch.seconds["inputs"].append(self._started - begin)
            self.watch.seconds[BETWEEN].append(self._started - self._answered)
            self.watch.seconds["rows"].append(len(self.step.tree))

    def finish(self) -> list[Answers]:
        if self._answered:
            self.watch.seconds[MEANWHILE].append(time.perf_counter() - self._started)
        packed = self.followers.answer(self.step.tree, len(self.step.sequence.tokens))
        self.sweep()
        self._answered = time.perf_counter()
        return [Answers.unpack(packed, self.step.num_candidates)]

    def abandon(self) -> None: ...

    def copy(self, source: Sequence, target: Sequence, length: int) -> None:
        """There is nothing to copy."""

    def drop(self, sequence: Sequence) -> None:
        """There is nothing to drop."""

    def close(self, sequence: Sequence) -> None: ...


def main() -> None:
    arguments = parse_arguments()
    sweep = make_forward(arguments.forward) if arguments.forward else make_sweep(arguments.sweep_mb)
    measure_batches(arguments, sweep) if arguments.sequences else measure_sequence(arguments, sweep)


def after(arguments: argparse.Namespace) -> str:
    return f"-after-{Path(arguments.forward).name}" if arguments.forward else ""


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
    engine = load_engine(arguments.model, "float32", "cpu", CompileMode.off, StepTimesSource.off)
    settings = [
        Setting(variant, temperature, rows, is_cold)
        for rows in arguments.rows
        for temperature in (0.0, 0.8)
        for is_cold in (False, True)
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
    return lambda: sampler.answers(model.forward(tree, cache, FORWARD_ROWS), tree, prompt, CANDIDATES)


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
    parser.add_argument("--model", default="demo/python-11m", help="whose tokenizer is used (default demo/python-11m)")
    add_output(parser)
    arguments = parse(parser)
    for name, least in (("rows", 1), ("steps", 2), ("sweep_mb", 1)):
        if (lowest := np.min(getattr(arguments, name))) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {lowest}")
    return arguments


def measure(engine: Engine, setting: Setting, num_steps: int, sweep: Callable[[], object]) -> Cost:
    """Measures the steps of one text."""
    with nullcontext() if setting.variant == "library" else python_alone():
        watch = Stopwatch()
        device = MadeUpDevice(watch, lambda: setting.is_cold and watch.seconds["rows"] and sweep())
        timed = Engine(engine.checkpoint, device, engine.request_builder)
        request = engine.request_builder.build(
            [token % NUM_TOKENS for token in range(7, 7 + PROMPT_LENGTH)],
            Auto(rows=setting.rows, max_rows=setting.rows, candidates=CANDIDATES),
            Sampling(temperature=setting.temperature, seed=1),
            Stopping(100_000, ignore_eos=True)
            if engine.checkpoint.max_length > 100_000
            else Stopping(None, ignore_eos=True),
        )
        timed.submit(request)
        (generation,) = timed.scheduler
        watch.watch(generation.decoder, "commit", PARTS[0])
        watch.watch(generation.decoder, "plan", PARTS[1])
        for _ in range(FIRST_STEPS):
            timed.step()
        watch.seconds.clear()
        for _ in range(num_steps):
            timed.step()
    return summarize(setting, watch.seconds)


def summarize(setting: Setting, seconds: dict[str, list[float]]) -> Cost:
    rows = seconds.pop("rows")
    seconds["rest"] = [
        whole - sum(parts)
        for whole, *parts in zip(seconds[BETWEEN], *(seconds[part] for part in PARTS[:-1]), strict=True)
    ]
    cost = Cost(setting, sum(rows) / len(rows), {})
    for part in (*PARTS, BETWEEN, MEANWHILE):
        cost.medians[part] = round(1e6 * median(seconds[part]), 1)
        cost.highs[part] = round(1e6 * quantiles(seconds[part], n=10)[-1], 1)
    return cost


def describe(costs: list[Cost]) -> str:
    """A table for the greedy requests and one for the sampled ones, with a line for each setting."""
    tables = ["Microseconds of a step: the median, and in brackets the 90th percentile."]
    columns = ["rows", "caches", "", *PARTS, BETWEEN, MEANWHILE]
    for temperature in dict.fromkeys(cost.setting.temperature for cost in costs):
        lines = [
            [
                f"{cost.setting.rows} ({cost.rows:.0f})",
                "cold" if cost.setting.is_cold else "warm",
                cost.setting.variant,
                *(f"{cost.medians[part]:.0f}" for part in PARTS),
                *(f"{cost.medians[part]:.0f} ({cost.highs[part]:.0f})" for part in (BETWEEN, MEANWHILE)),
            ]
            for cost in costs
            if cost.setting.temperature == temperature
        ]
        tables += [
            f"temperature {temperature:g}; beside the rows allowed, those of the trees:",
            markdown_table(columns, lines, 3),
        ]
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
