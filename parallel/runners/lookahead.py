"""Lookahead parallelism (arXiv 2402.02057, section 3.4): every rank holds the whole model and computes a part of the
token tree; one exchange of small integers then gives every rank all answers. Nothing else is communicated.

A rank's answers travel as int32 [L, C]: L rows of the largest part (shorter parts are padded), C columns of packed
answers (see Answers.pack). Gathered they are [ranks, L, C]; merged, [R, C] for the R rows of the whole tree.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from lp.request import Sequence
from lp.runner import ForwardRunner, StepInput
from lp.verification import Answers
from parallel.comm.channel import Channel
from parallel.runners.partition import TreePartitioner


class LookaheadParallel(ForwardRunner):
    """A Runner around this rank's own Runner. All ranks call it with the same trees in the same order.

    A replica is one rank, or the ranks of a tensor-parallel group, which then all answer the replica's part.
    """

    def __init__(self, inner: ForwardRunner, channel: Channel, ranks_per_replica: int = 1):
        """ranks_per_replica: neighbouring ranks that hold one replica between them."""
        super().__init__()
        self.inner = inner
        self.channel = channel
        self.ranks_per_replica = ranks_per_replica
        self.num_parts = channel.num_ranks // ranks_per_replica
        self._partitioners: defaultdict[str, TreePartitioner] = defaultdict(lambda: TreePartitioner(self.num_parts))
        """Of the sequences that have had a step: some may have been opened by the runner of an earlier epoch."""

    @property
    def cache_bytes(self) -> int:
        return self.inner.cache_bytes

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)
        self._partitioners.pop(sequence.id, None)

    def forward(self, step: StepInput) -> Answers:
        """Every replica's answers for its part, merged; of a row in several parts the lowest rank's answer counts."""
        tree = step.tree
        parts = self._partitioners[step.sequence.id].split(tree, step.sequence.tokens)
        own_part = parts[self.channel.rank // self.ranks_per_replica]
        own = self.inner.forward(replace(step, tree=tree.take(own_part))).pack()
        payload = np.zeros((max(map(len, parts)), own.shape[1]), dtype=np.int32)
        payload[: len(own)] = own
        gathered = self.channel.gather(payload.ravel(), step.fingerprint).reshape(-1, *payload.shape)
        by_replica = gathered[:: self.ranks_per_replica]
        merged = np.empty((len(tree), own.shape[1]), dtype=np.int32)
        for part, answers in reversed(list(zip(parts, by_replica, strict=True))):
            merged[part] = answers[: len(part)]
        return Answers.unpack(merged, step.num_candidates)
