"""One device computes and times each rank's part of every step, one part after the other.

`record` keeps each step, from which benchmarks/projections/projected_speed.py computes a speed.
benchmarks/projections/virtual_engine.py makes an engine of such ranks, with a clock of its own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import Charges, all_gather
from lp import Engine, Sampling, Stopping
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint
from lp.request import DecodingMethod, Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import ForwardRunner, Pending, SingleDevice
from lp.step_cost import StepTimes
from lp.tree import TokenTree
from parallel.comm.rows import HEADER, fill, message_length, pack
from parallel.runners.merging import answers_of, rows_of, tables_of
from parallel.runners.shares import KnownTokens, Shares
from parallel.runners.sharing import Sharing

# A clock that is read by calling it.
ReadSeconds = Callable[[], float]


def exchange_charges(num_sent: int, num_ranks: int) -> Charges:
    """Charges of a step's exchange: a header and, for each row of the largest part, a 32-bit target."""
    return all_gather((HEADER + num_sent) * 4, num_ranks)


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


@dataclass(frozen=True)
class PlayedStep:
    """One step of all sequences, whose parts were computed one after the other.

    inputs: what was asked of all ranks. seconds: one time for each rank. num_computing: ranks that had a part. rows:
    rows of the largest part, with the tokens that its caches lacked. num_sent: integers that a rank sends in the
    exchange. untimed_s: seconds in which answers were computed that no rank would compute.
    """

    inputs: list[StepInput]
    seconds: tuple[float, ...]
    num_computing: int
    rows: int
    num_sent: int
    untimed_s: float


class VirtualRanks(ForwardRunner):
    """Lookahead parallelism without the exchange: one process computes the parts of all ranks.

    Every rank has its own KV caches, because a rank must compute the accepted tokens that other ranks computed before.
    The ranks share the weights, which they only read.

    ranks: those whose answers count. timed: those whose time counts.
    """

    def __init__(
        self,
        model: CausalModel,
        num_ranks: int,
        on_step: Callable[[PlayedStep], None],
        clock: ReadSeconds = time.perf_counter,
        shard: CausalModel | None = None,
        make_device: Callable[[CausalModel], SingleDevice] = SingleDevice,
    ):
        """on_step: told of each step once it is computed. shard: the part of the model that a rank of tensor
        parallelism holds, whose answers mean nothing: its steps are timed, and the whole model answers them.
        make_device: makes a rank.
        """
        super().__init__()
        self.num_parts = num_ranks
        self.ranks = [make_device(model) for _ in range(num_ranks)]
        self.timed = [SingleDevice(shard) for _ in range(num_ranks)] if shard else self.ranks
        self._on_step, self._clock = on_step, clock
        self._sharing = Sharing()
        self._known: defaultdict[str, KnownTokens] = defaultdict(lambda: KnownTokens(num_ranks))

    @property
    def _devices(self) -> list[SingleDevice]:
        return self.ranks if self.timed is self.ranks else [*self.ranks, *self.timed]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the largest of the ranks' caches."""
        return max(rank.cache_bytes for rank in self.timed)

    def open(self, sequence: Sequence) -> None:
        for device in self._devices:
            device.open(sequence)

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        for device in self._devices:
            device.copy(source, target, length)
        known = self._known[source.id].count(source.tokens)
        self._known[target.id].numbers = [min(number, length) for number in known]
        return length

    def drop(self, sequence: Sequence) -> None:
        for device in self._devices:
            device.drop(sequence)
        self._forget(sequence)

    def close(self, sequence: Sequence) -> None:
        for device in self._devices:
            device.close(sequence)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self._sharing.forget(sequence.id)
        self._known.pop(sequence.id, None)

    def use_times(self, times: StepTimes) -> None:
        self._sharing.use_times(times)

    @property
    def is_asynchronous(self) -> bool:
        return False

    def launch(self, steps: list[StepInput]) -> Pending:
        all_known = [self._known[step.sequence.id] for step in steps]
        numbers = [known.count(step.sequence.tokens) for known, step in zip(all_known, steps, strict=True)]
        all_shares = self._sharing.share(steps, numbers)
        for known, step, shares in zip(all_known, steps, all_shares, strict=True):
            known.note(step.tree, len(step.sequence.tokens), shares)
        tables = tables_of(steps, all_shares)
        length = message_length(tables, len(self.ranks))
        seconds, messages, num_computing, rows, untimed_s = [], [], 0, 0, 0.0
        for number, (rank, timed) in enumerate(zip(self.ranks, self.timed, strict=True)):
            parts = [_copy(part) for part in map(Shares.part, all_shares, steps, repeat(number)) if part is not None]
            begin = self._clock()
            message = pack((0, 0), rows_of(timed.launch(parts)()) if parts else [], length)
            seconds.append(self._clock() - begin)
            if timed is not rank and parts:
                begin = self._clock()
                message = pack((0, 0), rows_of(rank.launch([_copy(part) for part in parts])()), length)
                untimed_s += self._clock() - begin
            messages.append(message)
            num_computing += bool(parts)
            rows = max(rows, sum(len(timed.states[part.sequence.id].last) for part in parts))
        self._on_step(PlayedStep(steps, tuple(seconds), num_computing, rows, length - HEADER, untimed_s))
        fill(tables, np.stack(messages))
        answers = answers_of(steps, tables)
        return lambda: answers


def _copy(part: StepInput) -> StepInput:
    """A rank's own copy, as real ranks have: a tree remembers what was derived from it."""
    return replace(part, tree=part.tree.take(range(len(part.tree)))) if len(part.tree) else part


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
    recorded: list[RecordedStep] = []
    sequences: list[Sequence] = []

    def note(step: PlayedStep) -> None:
        (own,) = step.inputs
        sequences[:] = [own.sequence]
        charges = exchange_charges(step.num_sent, num_ranks)
        recorded.append(RecordedStep(len(own.sequence.tokens), own.tree, step.seconds, step.rows, charges))

    engine = Engine(checkpoint, VirtualRanks(checkpoint.model, num_ranks, note, clock))
    sampling = Sampling(temperature=0.0, seed=0)
    begin = clock()
    engine.generate(prompt, decode=decode, sampling=sampling, stopping=Stopping(max_new_tokens))
    timed = sum(sum(step.seconds) for step in recorded)
    return RecordedText(sequences[0], recorded, clock() - begin - timed)


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
