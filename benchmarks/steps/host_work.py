"""Measures what the host does in a step of a real generation besides the forward: planning, verifying, text.

The engine's own parts are timed from outside, call by call. The mask is made right after the tree is planned, so that
its time is not part of the forward.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from lp import Engine
from lp.methods.auto.method import Auto
from lp.model.checkpoint import Checkpoint
from lp.request import Output, Request
from lp.runner.single_device import SingleDevice
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping
from lp.tree import TokenTree

FORWARD, ANSWERS, REST = "forward", "answers", "rest"
# The parts that need no model: planning the tree, its mask, verifying the targets and learning from them, turning
# tokens into text, and the rest, such as keeping rows in the cache.
HOST = ("planning", "mask", "verifying", "text", REST)


@dataclass(frozen=True)
class HostWork:
    """The steps after the prefill. seconds: average for one step, by part."""

    steps: int
    rows_per_step: float
    tokens_per_step: float
    seconds: dict[str, float]

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def host_s(self) -> float:
        """Seconds of all parts but the forward and the choice of tokens from its logits."""
        return sum(self.seconds[part] for part in HOST)


class TimedEngine(Engine):
    """An engine on one device that times its parts. seconds: spent so far, by part."""

    def __init__(self, checkpoint: Checkpoint):
        model = copy.copy(checkpoint.model)  # timing changes a method of this copy alone
        super().__init__(replace(checkpoint, model=model), SingleDevice(model))
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._watch(model, "forward_many", FORWARD)
        self._watch(model, "compute", FORWARD)
        self._watch(self.runner, "answer", ANSWERS)

    def add_request(self, request: Request) -> Output | None:
        if refusal := super().add_request(request):
            return refusal
        *_, state = self.scheduler
        self._watch(state.decoder, "plan", "planning")
        self._watch(state.decoder, "commit", "verifying")
        self._watch(state, "output", "text")
        return None

    def _watch(self, owner: Any, method: str, part: str) -> None:
        """Replaces a method of `owner` by one that adds its time to `part`."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **others: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments, **others)
            if part == FORWARD and self.checkpoint.model.device.type == "cuda":
                # Otherwise its kernels would count for the part that first needs their results.
                torch.cuda.synchronize()
            made = time.perf_counter()
            self.seconds[part] += made - begin
            if isinstance(result, TokenTree):
                _ = result.visibility
                self.seconds["mask"] += time.perf_counter() - made
            return result

        setattr(owner, method, timed)


def measure_host_work(checkpoint: Checkpoint, prompts: list[list[int]], num_rows: int, max_new_tokens: int) -> HostWork:
    """Measures greedy texts of decode=auto at `num_rows` rows per step.

    Raises ValueError for prompts that do not fit the model, and if no text lasts longer than the prefill.
    """
    engine = TimedEngine(checkpoint)
    decode = Auto(rows=num_rows, max_rows=num_rows)
    sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(max_new_tokens, ignore_eos=True)
    parts: defaultdict[str, float] = defaultdict(float)
    steps = rows = tokens = 0
    for prompt in prompts:
        progress = engine.stream(prompt, decode=decode, sampling=sampling, stopping=stopping)
        stats = next(progress).stats  # the engine keeps adding to them; the first step is the prefill
        before = stats.rows, stats.tokens
        engine.seconds.clear()
        begin = time.perf_counter()
        for _ in progress:
            pass
        parts[REST] += time.perf_counter() - begin - sum(engine.seconds.values())
        for part, seconds in engine.seconds.items():
            parts[part] += seconds
        steps += stats.steps - 1
        rows += stats.rows - before[0]
        tokens += stats.tokens - before[1]
    if not steps:
        raise ValueError(f"texts of {max_new_tokens} tokens were over with the first step: ask for more tokens")
    seconds = {part: parts[part] / steps for part in (FORWARD, ANSWERS, *HOST)}
    return HostWork(steps, rows / steps, tokens / steps, seconds)
