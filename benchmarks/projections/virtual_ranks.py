"""One device does the work of several ranks: each rank's part of every step by itself, in turn, and timed.

What comes out is a record of each step; what to make of it is the projection's matter
(benchmarks/projections/projecting.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.projections.network import Charges, LoneRank, all_gather
from lp import Engine, Sampling, Stopping
from lp.methods import DecodeSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint
from lp.request import Sequence
from lp.runner import ForwardRunner, StepInput
from lp.single_device import SingleDevice
from lp.tree import TokenTree
from lp.verification import Answers
from parallel.comm.channel import HEADER
from parallel.runners.partition import TreePartitioner

Clock = Callable[[], float]


def exchange(largest_part: int, num_ranks: int) -> Charges:
    """A step's exchange between all ranks: a header and a 32-bit target for each row of the largest part."""
    return all_gather((HEADER + largest_part) * 4, num_ranks)


@dataclass(frozen=True)
class Step:
    """One step, which its ranks would do at the same time.

    length: tokens of the sequence before it. tree: planned under the last of them. seconds: of each rank's part. rows:
    of the largest part, with the tokens that its cache lacked. charges: the step's communication.
    """

    length: int
    tree: TokenTree
    seconds: tuple[float, ...]
    rows: int
    charges: Charges


@dataclass(frozen=True)
class Recording:
    """One text. rest_s: seconds outside of the parts (planning, partition, verification), which every rank spends."""

    sequence: Sequence
    steps: list[Step]
    rest_s: float

    @property
    def new_tokens(self) -> list[int]:
        return self.sequence.tokens[self.sequence.prompt_length :]


class VirtualLookaheadParallel(ForwardRunner):
    """Lookahead parallelism without the exchange, for one sequence at a time. Every rank has a KV cache of its own, as
    it must feed the accepted tokens that other ranks computed; the weights, which ranks only read, are there once.
    """

    def __init__(self, model: CausalModel, num_ranks: int, clock: Clock = time.perf_counter):
        super().__init__()
        self.ranks = [SingleDevice(model) for _ in range(num_ranks)]
        self.clock = clock
        self.sequence: Sequence
        self.steps: list[Step]
        self.partitioner: TreePartitioner

    @property
    def cache_bytes(self) -> int:
        """Of the rank that holds most."""
        return max(rank.cache_bytes for rank in self.ranks)

    def open(self, sequence: Sequence) -> None:
        self.sequence, self.steps = sequence, []
        self.partitioner = TreePartitioner(len(self.ranks))
        for rank in self.ranks:
            rank.open(sequence)

    def close(self, sequence: Sequence) -> None:
        for rank in self.ranks:
            rank.close(sequence)

    def forward(self, step: StepInput) -> Answers:
        sequence, tree = step.sequence, step.tree
        parts = self.partitioner.split(tree, sequence.tokens)
        seconds, answers = [], []
        for rank, part in zip(self.ranks, parts, strict=True):
            begin = self.clock()
            answers.append(rank.forward(replace(step, tree=tree.take(part))).pack())
            seconds.append(self.clock() - begin)
        rows = max(len(rank.states[sequence.id].last) for rank in self.ranks)
        charges = exchange(max(len(part) for part in parts), len(self.ranks))
        self.steps.append(Step(len(sequence.tokens), tree, tuple(seconds), rows, charges))
        merged = np.empty((len(tree), answers[0].shape[1]), dtype=np.int32)
        for part, answered in reversed(list(zip(parts, answers, strict=True))):
            merged[part] = answered
        return Answers.unpack(merged, step.num_candidates)


def record(
    checkpoint: Checkpoint, num_ranks: int, how: DecodeSettings, prompt: list[int], max_new_tokens: int
) -> Recording:
    """A greedy text under lookahead parallelism. Raises ValueError if prompt and new tokens do not fit the context."""
    runner = VirtualLookaheadParallel(checkpoint.model, num_ranks)
    engine = Engine(checkpoint, runner)
    sampling = Sampling(temperature=0.0, seed=0)
    completion = engine.generate(prompt, decode=how, sampling=sampling, stopping=Stopping(max_new_tokens))
    timed = sum(sum(step.seconds) for step in runner.steps)
    return Recording(runner.sequence, runner.steps, completion.stats.decode_s - timed)


def replay(shard: CausalModel, collectives: LoneRank, single: Recording, clock: Clock = time.perf_counter) -> Recording:
    """One tensor-parallel rank on the steps of a text recorded on a single device.

    shard: read with these collectives. Its answers mean nothing, which does not matter to its time: what a cache keeps
    depends on the text alone. The other ranks' shards are as large, so one stands for all.
    """
    runner = SingleDevice(shard)
    sequence = Sequence("replay", [], single.sequence.prompt_length, single.sequence.sampling)
    runner.open(sequence)
    steps = []
    for step in single.steps:
        sequence.tokens = single.sequence.tokens[: step.length]
        before, begin = collectives.charges, clock()
        tree = step.tree.take(range(len(step.tree)))  # of its own, as ranks have it: a tree remembers its visibility
        runner.forward(StepInput(sequence, tree)).pack()
        seconds = clock() - begin
        rows = len(runner.states[sequence.id].last)
        charges = collectives.charges - before + exchange(len(step.tree), collectives.num_ranks)
        steps.append(Step(step.length, step.tree, (seconds,), rows, charges))
    return Recording(single.sequence, steps, single.rest_s)
