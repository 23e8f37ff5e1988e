"""How real trees would be split among several devices: one device decodes, and every tree is split on paper.

Tokens per step and rows are exact, whatever else the machine does. The host's own work is timed as processor time of
its thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Several
from dataclasses import dataclass

from lp import Engine, Sampling, Stopping
from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint
from lp.request import DecodingMethod, Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from parallel.runners.sharing import TreePartitioner


@dataclass
class SharedTrees:
    """The steps after the prompt's of some texts, decoded with trees of the same number of rows.

    rows: what was asked for; 1 is autoregressive decoding. largest: by the number of devices, the rows of the largest
    parts with their trunks, added up. host_s: processor seconds of planning, splitting and learning, added up.
    """

    category: str
    rows: int
    tokens: int
    steps: int
    largest: dict[int, int]
    host_s: float


class SplittingDevice(SingleDevice):
    """A single device that counts the rows of the largest part of every tree, for several numbers of devices."""

    def __init__(self, model: CausalModel, degrees: Several[int]):
        super().__init__(model)
        self.degrees = degrees
        self.partitioners: dict[int, TreePartitioner] = {}
        self.largest: dict[int, int] = {}
        # Tokens of the prompt's step, once there was a second step.
        self.num_first = 0
        self.computing_s = 0.0

    def open(self, sequence: Sequence) -> None:
        super().open(sequence)
        self.partitioners = {degree: TreePartitioner(degree) for degree in self.degrees}
        self.largest = dict.fromkeys(self.degrees, 0)
        self.num_first, self.computing_s = 0, 0.0

    def launch(self, steps: list[StepInput]) -> Pending:
        for step in steps:
            if len(step.tree):
                self._split(step)
        begin = time.thread_time()
        pending = super().launch(steps)
        self.computing_s += time.thread_time() - begin
        return pending

    def _split(self, step: StepInput) -> None:
        tokens = step.sequence.tokens
        num_new = len(tokens) - step.sequence.prompt_length
        self.num_first = self.num_first or num_new
        for degree, partitioner in self.partitioners.items():
            parts = partitioner.split(step.tree, tokens)
            rows = max(len(part) + trunk for part, trunk in zip(parts, partitioner.trunks, strict=True))
            self.largest[degree] += rows if num_new else 0


def record_texts(
    checkpoint: Checkpoint,
    prompts: Several[tuple[str, list[int]]],
    rows: int,
    degrees: Several[int],
    max_new_tokens: int,
) -> list[SharedTrees]:
    """Decodes texts greedily, one after the other, and splits their trees.

    prompts: each with its category. Raises ValueError if a text does not fit the context.
    """
    device = SplittingDevice(checkpoint.model, degrees)
    engine = Engine(checkpoint, device)  # one for all texts: it learns from each what drafts are worth
    decode: DecodingMethod = Auto(rows=rows) if rows > 1 else Autoregressive()
    found = []
    for category, prompt in prompts:
        begin = time.thread_time()
        completion = engine.generate(
            prompt, decode=decode, sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(max_new_tokens)
        )
        host_s = time.thread_time() - begin - device.computing_s
        tokens, steps = len(completion.token_ids) - device.num_first, completion.stats.steps - 1
        found.append(SharedTrees(category, rows, tokens, steps, dict(device.largest), host_s))
    return found


def add_up(recorded: Several[SharedTrees], degrees: Several[int]) -> dict[int, SharedTrees]:
    """All texts of each number of rows, added up over the categories, by the number of rows."""
    totals: dict[int, SharedTrees] = {}
    for one in recorded:
        total = totals.setdefault(one.rows, SharedTrees("all", one.rows, 0, 0, dict.fromkeys(degrees, 0), 0.0))
        total.tokens += one.tokens
        total.steps += one.steps
        total.host_s += one.host_s
        for degree in degrees:
            total.largest[degree] += one.largest[degree]
    return totals
