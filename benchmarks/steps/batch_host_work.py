"""Measures what the host does in a step that many sequences share, by parts, with a made-up device.

The engine, the decoders, the tokenizer and what the runner makes of a step are real, up to where a forward begins.
benchmarks/host_work.py prints the figures.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from benchmarks.shared.made_up_answers import CANDIDATES, NUM_TOKENS, FollowersTable, Stopwatch
from benchmarks.shared.report import markdown_table
from lp import Auto, Engine, Sampling, Stopping
from lp.methods import Autoregressive
from lp.model.causal import CausalModel, SequenceRows
from lp.model.fast import step_tensors
from lp.model.fast.step_tensors import StepBuffer
from lp.model.kv.arena import Arena, LayerShape
from lp.model.native.forward import NativeForward
from lp.runner import StepInput
from lp.scheduling import batches
from lp.single_device import Pending, SingleDevice
from lp.step_cost import StepTimes
from lp.verification import Answers

# Parts of a step, in their order: verifying and learning; offers, the budget and trees; the order of turns, room,
# prefixes and counts; what the forward reads; text, statistics and results. The first four keep a device waiting.
PARTS = ("settle", "plan", "schedule", "inputs", "text")
METHODS = ("autoregressive", "auto")
FORWARDS = ("GPU", "CPU")
# Steps in which all decode that are not measured, as the sources learn.
FIRST_STEPS = 24
PROMPT_LENGTH = 128
# A step-time curve like that of a small model on a GPU, by which decode=auto chooses.
TIMES = StepTimes((1, 64, 128, 256, 512, 1024), (2e-3, 2.2e-3, 2.6e-3, 3.6e-3, 6e-3, 11e-3))
PAGES_OF_A_SEQUENCE = 9

# Lays out the rows of a step for a forward.
LayOut = Callable[[list[SequenceRows]], object]


@dataclass(frozen=True)
class BatchSetting:
    """What is measured together. forward: whose inputs are made, those of a GPU's graphs or of the native one."""

    method: str
    temperature: float
    sequences: int
    forward: str
    is_cold: bool


@dataclass
class BatchCost:
    """Microseconds of a step, by part: the means over the quicker half of the steps, so that they add up. rows: of a
    step, on average.
    """

    setting: BatchSetting
    rows: float
    parts: dict[str, float]

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


class BatchDevice(SingleDevice):
    """A SingleDevice without a forward: it answers from a table, as soon as it has laid the rows out for one."""

    def __init__(self, model: CausalModel, lay_out: LayOut, watch: Stopwatch, sweep: Callable[[], object]):
        super().__init__(model)
        self.lay_out, self.watch, self.sweep = lay_out, watch, sweep
        self.followers = FollowersTable()
        self.laps: list[dict[str, float]] = []
        self._answered = self._started = 0.0

    @property
    def is_asynchronous(self) -> bool:
        return True

    def launch(self, steps: list[StepInput]) -> Pending:
        begin = time.perf_counter()
        self._prepare(steps)
        given = [self._rows(step) for step in steps]
        self.model.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
        self.lay_out(given)
        self._started = time.perf_counter()
        self._note(self._started - begin, sum(len(rows.tree) for rows in given))
        return lambda: self._answers(steps)

    def _note(self, inputs: float, num_rows: int) -> None:
        settle, plan = (sum(self.watch.seconds.pop(part, ())) for part in PARTS[:2])
        between = self._started - self._answered
        parts = dict(zip(PARTS, (settle, plan, between - settle - plan - inputs, inputs, 0.0), strict=True))
        self.laps.append({**parts, "rows": num_rows})

    def _answers(self, steps: list[StepInput]) -> list[Answers]:
        self.laps[-1]["text"] = time.perf_counter() - self._started
        packed = [self.followers.answer(step.tree, len(step.sequence.tokens)) for step in steps]
        packed = [answer[:, : max(1, step.num_candidates)] for answer, step in zip(packed, steps, strict=True)]
        self.sweep()
        self._answered = time.perf_counter()
        return [Answers.unpack(one, step.num_candidates) for one, step in zip(packed, steps, strict=True)]


def measure_batch(engine: Engine, setting: BatchSetting, num_steps: int, sweep: Callable[[], object]) -> BatchCost:
    """Measures the steps of as many texts as the setting says. engine: whose native forward is never run."""
    watch, is_measured = Stopwatch(), False
    model, lay_out = make_forward_inputs(engine.checkpoint.model, setting)
    device = BatchDevice(model, lay_out, watch, lambda: setting.is_cold and is_measured and sweep())
    timed = Engine(replace(engine.checkpoint, model=model), device, engine.request_builder, step_times=TIMES)
    with around_the_device(watch):
        for number in range(setting.sequences):
            submit(timed, setting, number)
        generations = list(timed.scheduler)
        for generation in generations:
            watch.watch(generation, "settle", PARTS[0])
        while any(not generation.stats.steps for generation in generations):
            timed.step()
        for _ in range(FIRST_STEPS):
            timed.step()
        del device.laps[:-1]  # the last one is under way
        is_measured = True
        for _ in range(num_steps + 1):
            timed.step()
    return summarize(setting, device.laps[1:-1])


def submit(engine: Engine, setting: BatchSetting, number: int) -> None:
    tokens = [(token * (number + 1)) % NUM_TOKENS for token in range(7, 7 + PROMPT_LENGTH)]
    decode = Autoregressive() if setting.method == METHODS[0] else Auto(candidates=CANDIDATES)
    sampling = Sampling(temperature=setting.temperature, seed=number)
    refusal = engine.submit(engine.request_builder.build(tokens, decode, sampling, Stopping(None, ignore_eos=True)))
    assert refusal is None, refusal


@contextmanager
def around_the_device(watch: Stopwatch) -> Iterator[None]:
    """Watches the planning, and leaves the copies to the device out."""
    before = batches.plan_together, step_tensors.upload_into
    watch.watch(batches, "plan_together", PARTS[1])
    step_tensors.upload_into = lambda values, target: None
    try:
        yield
    finally:
        batches.plan_together, step_tensors.upload_into = before


def make_forward_inputs(model: CausalModel, setting: BatchSetting) -> tuple[CausalModel, LayOut]:
    """A copy of the model whose caches are of the forward's kind, and what lays a step's rows out for it."""
    model = copy.copy(model)
    if setting.forward == "CPU":
        assert isinstance(model.fast, NativeForward), "there is no compiler for the native forward"
        model.fast = copy.copy(model.fast)
        model.fast._library = cast(Any, _NoForward())
        return model, model.fast
    cpu = torch.device("cpu")
    num_pages = PAGES_OF_A_SEQUENCE * setting.sequences
    model.memory = Arena({0: LayerShape(1, 8, 8)}, 1, num_pages, torch.float32, cpu, in_runs=False)
    buffers: dict[int, StepBuffer] = {}

    def fill(given: list[SequenceRows]) -> None:
        num_rows = 1 << (sum(len(rows.tree) for rows in given) - 1).bit_length()
        if num_rows not in buffers:
            buffers[num_rows] = StepBuffer(num_rows, setting.sequences, model.max_length, cpu)
        buffers[num_rows].fill([cast(Any, (rows.tree, rows.cache)) for rows in given])

    return model, fill


class _NoForward:
    """Stands for the library of a native forward."""

    def forward(self, *arguments: object) -> None: ...


def summarize(setting: BatchSetting, laps: list[dict[str, float]]) -> BatchCost:
    order = sorted(laps, key=lambda lap: sum(lap[part] for part in PARTS))
    quick = order[: len(order) // 2]
    parts = {part: round(1e6 * float(np.mean([lap[part] for lap in quick])), 1) for part in PARTS}
    return BatchCost(setting, float(np.mean([lap["rows"] for lap in quick])), parts)


def describe_batches(costs: list[BatchCost]) -> str:
    """A table for each method and temperature, with a line for each number of sequences."""
    text = [
        "Microseconds of a step: means over the quicker half of the steps. "
        "`inputs` are those of a GPU's graphs, or of the native forward on a CPU."
    ]
    columns = ["sequences", "rows", "caches", "inputs for", *PARTS, "whole", "of a sequence"]
    for method, temperature in dict.fromkeys((cost.setting.method, cost.setting.temperature) for cost in costs):
        lines = [
            [
                f"{cost.setting.sequences}", f"{cost.rows:.0f}", "cold" if cost.setting.is_cold else "warm",
                f"{cost.setting.forward}", *(f"{cost.parts[part]:.0f}" for part in PARTS),
                f"{cost.whole:.0f}", f"{cost.whole / cost.setting.sequences:.0f}",
            ]
            for cost in costs
            if (cost.setting.method, cost.setting.temperature) == (method, temperature)
        ]  # fmt: skip
        text += [f"{method}, temperature {temperature:g}:", markdown_table(columns, lines, 2)]
    return "\n\n".join(text)
