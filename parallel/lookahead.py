"""Lookahead parallelism (arXiv 2402.02057, section 3.4): every rank holds the whole model and computes a part of the
token tree; one exchange of small integers then gives every rank all answers. Nothing else is communicated.
"""

from __future__ import annotations

import numpy as np

from lp.request import Sequence
from lp.runner import Runner
from lp.tree import TokenTree
from lp.verification import Answers
from parallel.channel import Channel
from parallel.partition import partition


class LookaheadParallel:
    """A Runner around this rank's own Runner. All ranks call it with the same trees in the same order."""

    def __init__(self, inner: Runner, channel: Channel):
        self.inner = inner
        self.channel = channel

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def forward(self, sequence: Sequence, tree: TokenTree) -> Answers:
        """Every rank's answers for its part, merged; of a row in several parts the lowest rank's answer counts."""
        parts = partition(tree, self.channel.num_ranks)
        mine = self.inner.forward(sequence, tree.take(parts[self.channel.rank])).pack()
        largest = max(len(part) for part in parts)
        payload = np.zeros((largest, mine.shape[1]), dtype=np.int32)
        payload[: len(mine)] = mine
        gathered = self.channel.gather(payload.ravel(), sequence.fingerprint).reshape(len(parts), *payload.shape)
        merged = np.empty((len(tree), mine.shape[1]), dtype=np.int32)
        for part, answers in reversed(list(zip(parts, gathered, strict=True))):
            merged[part] = answers[: len(part)]
        return Answers.unpack(merged)
