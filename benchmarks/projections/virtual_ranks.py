"""One device computes and times each rank's part of every step, one part after the other.

The result is a record of each step; benchmarks/projections/projected_speed.py computes a speed from it.

Shapes: R rows of a step's tree, P rows of one rank's part, K + 1 answers of a row: its target and its K candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import Charges, all_gather
from lp import Engine, Sampling, Stopping
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint
from lp.request import DecodingMethod, Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import ForwardRunner, Pending, SingleDevice
from lp.tree import Answers, TokenTree
from parallel.comm.channel import HEADER
from parallel.runners.sharing import TreePartitioner

# A clock that is read by calling it.
ReadSeconds = Callable[[], float]


def exchange_charges(largest_part: int, num_ranks: int) -> Charges:
    """Charges of a step's exchange: a header and, for each row of the largest part, a 32-bit target."""
    return all_gather((HEADER + largest_part) * 4, num_ranks)


@dataclass(frozen=True)
class RecordedStep:
    """One step, whose parts real ranks would compute at the same time.

    length: tokens of the sequence before the step. tree: planned under the last of these tokens. seconds: one time for
    each rank's part. rows: rows of the largest part, with the tokens that its cache lacked. charges: the step's
    communication.
    """

    length: int
    tree: TokenTree
    seconds: tuple[float, ...]
    rows: int
    charges: Charges


@dataclass(frozen=True)
class RecordedText:
    """The steps of one text.

    rest_s: seconds outside the parts (planning, partition, verification), which every rank would spend.
    """

    sequence: Sequence
    steps: list[RecordedStep]
    rest_s: float

    @property
    def new_tokens(self) -> list[int]:
        return self.sequence.tokens[self.sequence.prompt_length :]


class VirtualLookaheadParallel(ForwardRunner):
    """Lookahead parallelism without the exchange, for one sequence at a time.

    Every rank has its own KV cache, because a rank must compute the accepted tokens that other ranks computed before.
    The ranks share the weights, which they only read.
    """

    def __init__(self, model: CausalModel, num_ranks: int, clock: ReadSeconds = time.perf_counter):
        super().__init__()
        self.ranks = [SingleDevice(model) for _ in range(num_ranks)]
        self.clock = clock
        self.sequence: Sequence
        self.steps: list[RecordedStep]
        self.partitioner: TreePartitioner

    @property
    def cache_bytes(self) -> int:
        """Bytes of the largest of the ranks' caches."""
        return max(rank.cache_bytes for rank in self.ranks)

    def open(self, sequence: Sequence) -> None:
        self.sequence, self.steps = sequence, []
        self.partitioner = TreePartitioner(len(self.ranks))
        for rank in self.ranks:
            rank.open(sequence)

    def copy(self, source: Sequence, target: Sequence, length: int) -> None:
        for rank in self.ranks:
            rank.copy(source, target, length)

    def drop(self, sequence: Sequence) -> None:
        for rank in self.ranks:
            rank.drop(sequence)

    def close(self, sequence: Sequence) -> None:
        for rank in self.ranks:
            rank.close(sequence)

    @property
    def is_asynchronous(self) -> bool:
        return False

    def launch(self, steps: list[StepInput]) -> Pending:
        answers = [self._answers(step) for step in steps]
        return lambda: answers

    def _answers(self, step: StepInput) -> Answers:
        sequence, tree = step.sequence, step.tree
        parts = self.partitioner.split(tree, sequence.tokens)
        seconds, answers_PK = [], []
        for rank, part in zip(self.ranks, parts, strict=True):
            begin = self.clock()
            answers_PK.append(rank.launch([replace(step, tree=tree.take(part))])()[0].pack())
            seconds.append(self.clock() - begin)
        rows = max(len(rank.states[sequence.id].last) for rank in self.ranks)
        charges = exchange_charges(max(len(part) for part in parts), len(self.ranks))
        self.steps.append(RecordedStep(len(sequence.tokens), tree, tuple(seconds), rows, charges))
        merged_RK = np.empty((len(tree), answers_PK[0].shape[1]), dtype=np.int32)
        for part, answered_PK in reversed(list(zip(parts, answers_PK, strict=True))):
            merged_RK[part] = answered_PK
        return Answers.unpack(merged_RK, step.num_candidates)


def record(
    checkpoint: Checkpoint,
    num_ranks: int,
    decode: DecodingMethod,
    prompt: list[int],
    max_new_tokens: int,
    clock: ReadSeconds = time.perf_counter,
) -> RecordedText:
    """Records a greedy text under lookahead parallelism.

    Raises ValueError if the prompt and the new tokens do not fit the context.
    """
    runner = VirtualLookaheadParallel(checkpoint.model, num_ranks, clock)
    engine = Engine(checkpoint, runner)
    sampling = Sampling(temperature=0.0, seed=0)
    begin = clock()
    engine.generate(prompt, decode=decode, sampling=sampling, stopping=Stopping(max_new_tokens))
    timed = sum(sum(step.seconds) for step in runner.steps)
    return RecordedText(runner.sequence, runner.steps, clock() - begin - timed)


def replay(
    shard: CausalModel, collectives: LoneRank, single: RecordedText, clock: ReadSeconds = time.perf_counter
) -> RecordedText:
    """Repeats the steps of a text, which a single device recorded, on one tensor-parallel rank.

    shard: a model that was read with these collectives. Its answers mean nothing, but that does not change its time:
    what the cache keeps depends on the text alone. One shard stands for all: the first, which has as many attention
    heads as any other.
    """
    runner = SingleDevice(shard)
    sequence = Sequence("replay", [], single.sequence.prompt_length, single.sequence.sampling)
    runner.open(sequence)
    steps = []
    for step in single.steps:
        sequence.tokens = single.sequence.tokens[: step.length]
        before, begin = collectives.charges, clock()
        tree = step.tree.take(range(len(step.tree)))  # a copy, as ranks have: a tree remembers its visibility
        runner.launch([StepInput.of(sequence, tree)])()[0].pack()
        seconds = clock() - begin
        rows = len(runner.states[sequence.id].last)
        charges = collectives.charges - before + exchange_charges(len(step.tree), collectives.num_ranks)
        steps.append(RecordedStep(step.length, step.tree, (seconds,), rows, charges))
    return RecordedText(single.sequence, steps, single.rest_s)
