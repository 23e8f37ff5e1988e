"""Lookahead parallelism (arXiv 2402.02057, section 3.4): every rank holds the whole model and computes a part of the
token tree. One exchange of small integers then gives every rank all answers. Nothing else is communicated. A step that
is not worth sharing is computed by one replica, and the others rest.

    R rows of the whole tree, L rows of its largest part, C columns of packed answers (see Answers.pack)

A rank sends its answers as int32 [L, C]; smaller parts are padded with rows of zeros. Gathered, they are
[ranks, L, C]. Merged, they are [R, C].
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np

from lp.request import Sequence
from lp.runner import StepInput
from lp.single_device import ForwardRunner, Pending
from lp.verification import Answers
from parallel.comm.channel import Channel
from parallel.runners.partition import TreePartitioner


class LookaheadParallel(ForwardRunner):
    """A Runner around this rank's own runner. All ranks call it with the same trees in the same order.

    A replica is a single rank or a tensor-parallel group, whose ranks all compute the same part of the tree.

    num_rests: the number of steps in which this rank computed nothing.
    """

    def __init__(self, inner: ForwardRunner, channel: Channel, ranks_per_replica: int = 1):
        """inner: this rank's own runner. ranks_per_replica: number of neighbouring ranks that hold one replica."""
        super().__init__()
        self.inner = inner
        self.channel = channel
        self.ranks_per_replica = ranks_per_replica
        self.num_parts = channel.num_ranks // ranks_per_replica
        self.num_rests = 0
        # By sequence id, made at a sequence's first step: the runner of an earlier epoch may have opened the sequence.
        self._partitioners: defaultdict[str, TreePartitioner] = defaultdict(lambda: TreePartitioner(self.num_parts))

    @property
    def cache_bytes(self) -> int:
        return self.inner.cache_bytes

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def copy(self, source: Sequence, target: Sequence, length: int) -> None:
        self.inner.copy(source, target, length)

    def drop(self, sequence: Sequence) -> None:
        self.inner.drop(sequence)
        self._partitioners.pop(sequence.id, None)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)
        self._partitioners.pop(sequence.id, None)

    @property
    def is_asynchronous(self) -> bool:
        return self.inner.is_asynchronous

    def launch(self, steps: list[StepInput]) -> Pending:
        """Starts this replica's parts; the exchanges are part of the wait for the answers.

        A replica without rows rests: it takes part in the exchange alone, and computes what it lacks when it has rows
        again.
        """
        all_parts = [self._split(step) for step in steps]
        own: list[StepInput | None] = []
        for step, parts in zip(steps, all_parts, strict=True):
            part = parts[self.channel.rank // self.ranks_per_replica]
            is_fed = not len(step.tree)  # all ranks compute what a sequence is fed
            own.append(step if is_fed else replace(step, tree=step.tree.take(part)) if part else None)
            self.num_rests += not (part or is_fed)
        computed = [step for step in own if step is not None]
        return partial(self._all_merged, steps, all_parts, own, self.inner.launch(computed) if computed else list)

    def _split(self, step: StepInput) -> list[list[int]]:
        if not len(step.tree):
            return [[] for _ in range(self.num_parts)]
        partitioner = self._partitioners[step.sequence.id]
        return partitioner.split(step.tree, step.sequence.tokens, step.is_shared)

    def _all_merged(
        self,
        steps: list[StepInput],
        all_parts: list[list[list[int]]],
        own: list[StepInput | None],
        pending: Pending,
    ) -> list[Answers]:
        answers = iter(pending())
        each = zip(steps, all_parts, own, strict=True)
        return [self._merged(step, parts, next(answers) if mine else None) for step, parts, mine in each]

    def _merged(self, step: StepInput, parts: list[list[int]], own: Answers | None) -> Answers:
        """Merges the answers of all replicas. If a row is in several parts, the answer of the lowest rank counts."""
        if not len(step.tree):
            return Answers.none()
        payload = np.zeros((max(map(len, parts)), step.num_columns), dtype=np.int32)
        if own:
            packed = own.pack()
            payload[: len(packed)] = packed
        gathered = self.channel.gather(payload.ravel(), step.fingerprint).reshape(-1, *payload.shape)
        by_replica = gathered[:: self.ranks_per_replica]
        merged = np.empty((len(step.tree), step.num_columns), dtype=np.int32)
        for part, answers in reversed(list(zip(parts, by_replica, strict=True))):
            merged[part] = answers[: len(part)]
        return Answers.unpack(merged, step.num_candidates)
