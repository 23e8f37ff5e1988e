"""Measures what the host does in a step that one or more sequences share, by parts, with a made-up device.

The engine, the decoders, the tokenizer, the runner and what lays the rows out for a forward are real, up to where a
device would begin: the clock starts when a forward's answers are there, and ends when the next forward has all that it
reads. benchmarks/host_work.py prints the figures.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from benchmarks.shared.made_up_answers import CANDIDATES, NUM_TOKENS, FollowersTable, Stopwatch
from benchmarks.shared.report import markdown_table
from benchmarks.steps.made_up_forward import MadeUpForward, MadeUpGraphs, make_forward
from lp import Auto, Engine, Sampling, Stopping
from lp.methods.autoregressive import Autoregressive
from lp.model.causal import CausalModel
from lp.model.gpu import step_tensors
from lp.request import DecodingMethod
from lp.runner import single_device
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.sampling.batch import Asked
from lp.sampling.sampler import Sampler
from lp.step_cost import StepTimes
from lp.tree import Answers

# Parts of a step, in their order: verifying and learning; offers, the budget and trees; the order of turns, room,
# prefixes and counts; what the runner does for each sequence; what the forward reads (up to the launch of a
# GPU's first graph); text, statistics and results. All but the last keep a device waiting.
PARTS = ("commit", "plan", "schedule", "runner", "fill", "text")
BETWEEN = PARTS[:-1]
METHODS = ("autoregressive", "auto")
FORWARDS = ("GPU", "CPU")
# Steps in which all decode that are not measured, as the sources learn.
FIRST_STEPS = 24
PROMPT_LENGTH = 128
# A step-time curve like that of a small model on a GPU, by which decode=auto chooses.
TIMES = StepTimes((1, 64, 128, 256, 512, 1024), (2e-3, 2.2e-3, 2.6e-3, 3.6e-3, 6e-3, 11e-3))


@dataclass(frozen=True)
class BatchSetting:
    """What is measured together. forward: whose inputs are made, those of a GPU's graphs or of the native one."""

    method: str
    temperature: float
    sequences: int
    forward: str
    is_cold: bool

    @property
    def decode(self) -> DecodingMethod:
        return Autoregressive() if self.method == METHODS[0] else Auto(candidates=CANDIDATES)


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
    """A SingleDevice that works by itself, and answers from a table. laps: seconds of each step by part, and its rows.

    Text is told while it works.
    """

    def __init__(self, model: CausalModel, forward: MadeUpForward | MadeUpGraphs, watch: Stopwatch):
        super().__init__(model)
        self.forward, self.watch = forward, watch
        self.sweep: Callable[[], object] | None = None  # is called before each answer
        self.followers = FollowersTable()
        self.laps: list[dict[str, float]] = []
        self._answered = 0.0
        self._steps: dict[int, StepInput] = {}  # by the identity of what was asked for them

    @property
    def is_asynchronous(self) -> bool:
        return True

    def launch(self, steps: list[StepInput]) -> Pending:
        begin = time.perf_counter()
        pending = super().launch(steps)
        self._note_lap(begin)
        return pending

    def _note_lap(self, begin: float) -> None:
        """begin: when the runner was called."""
        commit, plan = (sum(self.watch.seconds.pop(part, ())) for part in PARTS[:2])
        schedule, forward = begin - self._answered - commit - plan, self.forward
        seconds = commit, plan, schedule, forward.began - begin, forward.started - forward.began, 0.0
        self.laps.append({**dict(zip(PARTS, seconds, strict=True)), "rows": forward.num_rows})

    def asked(self, step: StepInput) -> Asked:
        asked = super().asked(step)
        self._steps[id(asked)] = step
        return asked

    def answer(self, asked: list[Asked], logits: Tensor, *how: Any) -> Callable[[], list[Answers]]:
        """The answers are there as soon as somebody waits for them."""
        steps = [self._steps.pop(id(one)) for one in asked]

        def wait() -> list[Answers]:
            self.laps[-1]["text"] = time.perf_counter() - self.forward.started
            self.watch.seconds.clear()
            # By copies of the trees: otherwise arrays would be made of their rows, which nobody else asks for.
            packed = [self.followers.answer(copy.copy(step.tree), len(step.sequence.tokens)) for step in steps]
            packed = [answer[:, : max(1, step.num_candidates)] for answer, step in zip(packed, steps, strict=True)]
            answers = [Answers.unpack(answer, step.num_candidates) for answer, step in zip(packed, steps, strict=True)]
            if self.sweep:
                self.sweep()
            self._answered = time.perf_counter()
            return answers

        return wait


def measure_batch(engine: Engine, setting: BatchSetting, num_steps: int, sweep: Callable[[], object]) -> BatchCost:
    """Measures the steps of as many texts as the setting says. engine: whose native forward is never run."""
    laps = measure_laps(
        engine, setting.decode, setting.temperature, setting.sequences, setting.forward, num_steps,
        sweep if setting.is_cold else None, FIRST_STEPS, TIMES,
    )  # fmt: skip
    order = sorted(laps, key=lambda lap: sum(lap[part] for part in PARTS))
    quick = order[: len(order) // 2]
    parts = {part: round(1e6 * float(np.mean([lap[part] for lap in quick])), 1) for part in PARTS}
    return BatchCost(setting, float(np.mean([lap["rows"] for lap in quick])), parts)


def measure_laps(
    engine: Engine,
    decode: DecodingMethod,
    temperature: float,
    num_sequences: int,
    forward: str,
    num_steps: int,
    sweep: Callable[[], object] | None,
    first_steps: int,
    step_times: StepTimes | None,
    is_watched: bool = True,
) -> list[dict[str, float]]:
    """The seconds of each step by part, and its rows, of texts that are decoded together.

    forward: see BatchSetting. sweep: is called before each answer; None leaves the caches warm. first_steps: that are
    not measured. is_watched: whether committing and planning are told apart, which takes some microseconds; otherwise
    `schedule` contains them.
    """
    laps: list[dict[str, float]] = []
    while len(laps) < num_steps:  # texts that grow by many tokens a step fill their context before that
        watch = Stopwatch()
        with around_the_device(forward):
            model, made_up = make_forward(engine.checkpoint.model, forward, num_sequences)
            device = BatchDevice(model, made_up, watch)
            checkpoint = replace(engine.checkpoint, model=model)
            timed = Engine(checkpoint, device, engine.request_builder, step_times=step_times)
            for number in range(num_sequences):
                submit(timed, decode, temperature, number)
            if is_watched:
                watch.watch(timed.scheduler, "commit", PARTS[0])
                watch.watch(timed.planner, "plan", PARTS[1])
            laps += laps_of_texts(timed, device, first_steps, num_steps - len(laps), sweep)
    return laps


def laps_of_texts(
    engine: Engine, device: BatchDevice, first_steps: int, num_steps: int, sweep: Callable[[], object] | None
) -> list[dict[str, float]]:
    """What `measure_laps` returns, up to where the first of the submitted texts ends."""
    states = list(engine.scheduler)
    while any(not state.stats.steps for state in states):
        engine.step()
    for _ in range(first_steps):
        engine.step()
    del device.laps[:-1]  # the last one is under way
    device.sweep = sweep
    while len(device.laps) < num_steps + 2:
        if any(output.finish_reason for output in engine.step()):
            break
    assert len(device.laps) > 2, "a text ended before a step of it was measured"
    return device.laps[1:-1]


def submit(engine: Engine, decode: DecodingMethod, temperature: float, number: int) -> None:
    tokens = [(token * (number + 1)) % NUM_TOKENS for token in range(7, 7 + PROMPT_LENGTH)]
    sampling = Sampling(temperature=temperature, seed=1 + number)
    refusal = engine.add_request(
        engine.request_builder.build(tokens, decode, sampling, Stopping(None, ignore_eos=True))
    )
    assert refusal is None, refusal


@contextmanager
def around_the_device(forward: str) -> Iterator[None]:
    """Has a GPU's choosers asked for, and leaves the copies to the device out."""
    with ExitStack() as patches:
        if forward == "GPU":
            patches.enter_context(patch.object(single_device, "can_fuse", lambda *_: True))
            patches.enter_context(patch.object(Sampler, "_can_fuse", lambda *_: True))
            patches.enter_context(patch.object(step_tensors, "upload_into", lambda values, target: None))
        yield


def describe_batches(costs: list[BatchCost]) -> str:
    """A table for each method and temperature, with a line for each number of sequences."""
    text = [
        "Microseconds of a step: means over the quicker half of the steps. "
        "`fill` makes what a GPU's graphs read, or what the native forward reads on a CPU."
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
