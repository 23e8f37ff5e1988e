"""A runner that plays several replicas: it shares rows as real ranks do and adds up what their steps would take.

Nothing but the answers is computed. A step takes as long as the replica that takes longest, and the exchange.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks.projections.network import Network, all_gather
from benchmarks.projections.streams.known_answers import KnownAnswers, KnownText
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import ForwardRunner, Pending
from lp.step_cost import StepTimes
from parallel.comm.rows import HEADER
from parallel.runners.shares import KnownTokens, Shares
from parallel.runners.sharing import Sharing


@dataclass
class Load:
    """What one replica has in a step. sequences: of which it computes something. cached: tokens of all of them."""

    rows: int = 0
    sequences: int = 0
    cached: int = 0

    def add(self, rows: int, cached: int) -> None:
        self.rows += rows
        self.sequences += 1
        self.cached += cached

    def seconds(self, curve: StepTimes) -> float:
        """curve: of one replica."""
        return curve.at(self.rows) + curve.of_sequences(self.sequences, self.cached) if self.sequences else 0.0


@dataclass
class PlayedStep:
    """One step. loads: of the replicas. exchanged: numbers that the replica with the most answers sends."""

    loads: list[Load] = field(default_factory=list)
    exchanged: int = 0

    def seconds(self, curve: StepTimes, network: Network) -> float:
        """curve: of one replica. network: between the replicas."""
        charges = all_gather(4 * (HEADER + self.exchanged), len(self.loads))
        return max(load.seconds(curve) for load in self.loads) + network.seconds(charges)


class VirtualReplicas(ForwardRunner):
    """Replicas that share steps.

    texts: by the id of a sequence, the text whose first tokens it has; to be set before it is opened. step: the last
    one. answering_s: processor seconds that went into answers, which are not the host's work.
    """

    def __init__(self, answers: KnownAnswers, num_replicas: int):
        super().__init__()
        self.num_parts = num_replicas
        self.texts: dict[str, KnownText] = {}
        self.step = PlayedStep()
        self.answering_s = 0.0
        self._answers, self._sharing = answers, Sharing()
        self._known: defaultdict[str, KnownTokens] = defaultdict(lambda: KnownTokens(num_replicas))

    @property
    def is_asynchronous(self) -> bool:
        return False

    @property
    def cache_bytes(self) -> int:
        return 0

    def open(self, sequence: Sequence) -> None:
        assert sequence.id in self.texts

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        known = self._known[source.id].count(source.tokens)
        self._known[target.id].numbers = [min(number, length) for number in known]
        return length

    def drop(self, sequence: Sequence) -> None:
        self._known.pop(sequence.id, None)

    def close(self, sequence: Sequence) -> None:
        self._sharing.forget(sequence.id)
        self._known.pop(sequence.id, None)
        del self.texts[sequence.id]

    def use_times(self, times: StepTimes) -> None:
        self._sharing.use_times(times)

    def launch(self, steps: list[StepInput]) -> Pending:
        all_known = [self._known[step.sequence.id] for step in steps]
        numbers = [known.count(step.sequence.tokens) for known, step in zip(all_known, steps, strict=True)]
        all_shares = self._sharing.share(steps, numbers)
        self.step = played(steps, numbers, all_shares, self.num_parts)
        for known, step, shares in zip(all_known, steps, all_shares, strict=True):
            known.note(step.tree, len(step.sequence.tokens), shares)
        begin = time.thread_time()
        answers = self._answers.answer([(self.texts[step.sequence.id], step) for step in steps])
        self.answering_s += time.thread_time() - begin
        return lambda: answers


def played(steps: list[StepInput], numbers: list[list[int]], all_shares: list[Shares], num_replicas: int) -> PlayedStep:
    """What replicas have to do. numbers: for each step, how many of its first tokens each replica has computed."""
    loads = [Load() for _ in range(num_replicas)]
    sent = [0] * num_replicas
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        length = len(step.sequence.tokens)
        for replica, rows in shares.rows.items():
            loads[replica].add(len(rows) + max(0, step.num_computed - known[replica]), length)
            sent[replica] += len(rows) * step.num_columns
        for replica, num_computed in shares.feeds.items():
            if num_computed > known[replica]:
                loads[replica].add(num_computed - known[replica], length)
    return PlayedStep(loads, max(sent))
