"""One device computes and times each rank's part of every step, one part after the other.

benchmarks/projections/virtual_engine.py makes an engine of such ranks, with a clock of its own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import torch

from lp.kv_cache.contiguous import ContiguousCache
from lp.model.causal import CausalModel
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import ForwardRunner, Pending, SingleDevice
from lp.step_cost import Extras, StepTimes
from lp.tree import NO_ROWS, chain
from parallel.comm.rows import fill, message_length, pack
from parallel.runners.copy_cost import Copy, CopyCost, plan_copies
from parallel.runners.merging import answers_of, rows_of, tables_of
from parallel.runners.shares import KnownTokens, Shares
from parallel.runners.sharing import Sharing

# A clock that is read by calling it.
ReadSeconds = Callable[[], float]


@dataclass(frozen=True)
class PlayedStep:
    """One step of all sequences, whose parts were computed one after the other.

    inputs: what was asked of all ranks. seconds: one time for each rank. num_computing: ranks that had a part. rows:
    rows of the largest part, with the tokens that its caches lacked. untimed_s: seconds in which answers were computed
    that no rank would compute, and keys and values copied. copying_s: seconds that each rank would spend on copies.
    """

    inputs: list[StepInput]
    seconds: tuple[float, ...]
    num_computing: int
    rows: int
    untimed_s: float
    copying_s: tuple[float, ...]

    @property
    def slowest_s(self) -> float:
        """Returns the seconds of the rank that takes longest."""
        return max(map(sum, zip(self.seconds, self.copying_s, strict=True)))


class VirtualRanks(ForwardRunner):
    """Lookahead parallelism without the exchange: one process computes the parts of all ranks.

    Every rank has its own KV caches, because a rank must compute the accepted tokens that other ranks computed before.
    The ranks share the weights, which they only read. If step times have the times of copies, a long prompt is split
    among the ranks, and keys and values are copied from cache to cache, as real ranks would send them; copies take
    their times by the table.

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
        self._extras = Extras()

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
        model, self._extras = self.ranks[0].model, times.extras
        if self.num_parts > 1 and self.timed is self.ranks:
            self._sharing.copy_cost = CopyCost.of(times, model.runs_by_layer * model.num_layers)

    @property
    def is_asynchronous(self) -> bool:
        return False

    def launch(self, steps: list[StepInput]) -> Pending:
        all_known = [self._known[step.sequence.id] for step in steps]
        numbers = [known.count(step.sequence.tokens) for known, step in zip(all_known, steps, strict=True)]
        all_shares = self._sharing.share(steps, numbers)
        copies = plan_copies(steps, numbers, all_shares, self._sharing.copy_cost)
        for known, step, shares in zip(all_known, steps, all_shares, strict=True):
            known.note(step.tree, len(step.sequence.tokens), shares)
        copying_s, before_s, untimed_s = self._gather_caches(steps, all_shares, copies)
        tables = tables_of(steps, all_shares)
        length = message_length(tables, len(self.ranks))
        seconds, messages, num_computing, rows = [], [], 0, 0
        for number, (rank, timed) in enumerate(zip(self.ranks, self.timed, strict=True)):
            parts = [_copy(part) for part in map(Shares.part, all_shares, steps, repeat(number)) if part is not None]
            begin = self._clock()
            message = pack((0, 0), rows_of(timed.launch(parts)()) if parts else [], length)
            seconds.append(before_s[number] + self._clock() - begin)
            if timed is not rank and parts:
                begin = self._clock()
                message = pack((0, 0), rows_of(rank.launch([_copy(part) for part in parts])()), length)
                untimed_s += self._clock() - begin
            messages.append(message)
            num_computing += bool(parts)
            rows = max(rows, sum(len(timed.states[part.sequence.id].last) for part in parts))
        self._on_step(PlayedStep(steps, tuple(seconds), num_computing, rows, untimed_s, tuple(copying_s)))
        fill(tables, np.stack(messages))
        answers = answers_of(steps, tables)
        return lambda: answers

    def _gather_caches(
        self, steps: list[StepInput], all_shares: list[Shares], copies: list[Copy]
    ) -> tuple[list[float], list[float], float]:
        """Copies what ranks lack, and computes the parts of prompts that are split.

        Returns the seconds that copies would take each rank, those that it has computed, and those of the copies here.
        """
        copying_s, computing_s, untimed_s = [0.0] * self.num_parts, [0.0] * self.num_parts, 0.0
        for copy in copies:
            untimed_s += self._copy_tokens(copy, steps[copy.step].sequence)
            for rank in (copy.source, copy.target):
                copying_s[rank] += self._extras.copy + (copy.end - copy.begin) * self._extras.copied_token
        for number, (step, shares) in enumerate(zip(steps, all_shares, strict=True)):
            if (split := shares.split) is None:
                continue
            start, largest = split.bounds[0], 0
            for place, rank in enumerate(split.replicas):
                begin, end = split.bounds[place : place + 2]
                computing_s[rank] += self._compute_missing(rank, step.sequence, start)
                if place:
                    before = Copy(number, split.replicas[place - 1], rank, start, begin)
                    untimed_s += self._copy_tokens(before, step.sequence)
                computing_s[rank] += self._compute_part(rank, step.sequence, begin, end)
                largest = max(largest, end - begin)
            model, replicas = self.ranks[0].model, len(split.replicas)
            for rank in split.replicas:
                copying_s[rank] += model.num_layers * self._extras.copy
                copying_s[rank] += replicas * largest * self._extras.copied_token
        return copying_s, computing_s, untimed_s

    def _copy_tokens(self, copy: Copy, sequence: Sequence) -> float:
        """Copies keys and values from rank to rank. Returns the seconds of that."""
        begin_s, model = self._clock(), self.ranks[0].model
        source, target = (self.ranks[rank].committed_cache(sequence) for rank in (copy.source, copy.target))
        target.length = copy.begin
        target.append(source.export(copy.begin, copy.end), model.cache_shapes)
        return self._clock() - begin_s

    def _compute_missing(self, rank: int, sequence: Sequence, length: int) -> float:
        """Computes a few tokens that were not worth a copy. Returns the seconds of that."""
        begin_s = self._clock()
        if self.ranks[rank].committed_cache(sequence).length < length:
            self.ranks[rank].launch([StepInput(sequence, NO_ROWS, length)])()
        return self._clock() - begin_s

    @torch.inference_mode()
    def _compute_part(self, rank: int, sequence: Sequence, begin: int, end: int) -> float:
        """Computes tokens of a split prompt behind those that the rank has. Returns the seconds of that."""
        begin_s, model, cache = self._clock(), self.ranks[rank].model, self.ranks[rank].committed_cache(sequence)
        cache.reserve(end - begin)
        if not cache.is_written:
            assert isinstance(cache, ContiguousCache), "an arena's layers are always there"
            cache.begin(model.cache_shapes, torch.empty(0, dtype=model.dtype))
        model.forward_by_layer(chain(sequence.tokens[begin:end]), cache, lambda layer: None)
        cache.keep(range(end - begin))
        return self._clock() - begin_s


def _copy(part: StepInput) -> StepInput:
    """A rank's own copy, as real ranks have: a tree remembers what was derived from it."""
    return replace(part, tree=part.tree.take(range(len(part.tree)))) if len(part.tree) else part
