"""What it costs to copy keys and values from one replica to another, in rows, and which tokens of a batch are copied.

A row here is the time in which a replica computes one more token of a long trunk. Both times are measured with the step
times, which are the same on all ranks, so all ranks decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lp.runner.runner import StepInput
from lp.step_cost import LEAST_COPIED, USUAL_ROWS, StepTimes
from parallel.runners.shares import Shares


class CopyCost(NamedTuple):
    """Rows that a copy costs, whatever its length, and that each of its tokens costs; infinite if nothing is copied.

    least: tokens of the shortest copy. Most steps of lookahead parallelism leave a lag of a few tokens, for which no
    replica should wait for another. per_split: rows that it costs to compute a prompt on several replicas, whatever its
    length, as they send each other each layer by itself; infinite where that cannot be done.
    """

    per_copy: float = math.inf
    per_token: float = math.inf
    least: int = LEAST_COPIED
    per_split: float = math.inf

    @staticmethod
    def of(times: StepTimes, num_layers: int = 0) -> CopyCost:
        """The cost by measured times; nothing is copied if these tell nothing of copies or of rows.

        num_layers: of the model, if prompts can be split.
        """
        curve, extras = times.alone or times.by_part(), times.extras
        most = max(4 * USUAL_ROWS, curve.rows[-1])
        row_s = (curve.at(most) - curve.at(USUAL_ROWS)) / (most - USUAL_ROWS)
        if row_s <= 0 or extras.copied_token <= 0:
            return NO_COPIES
        per_copy, per_token = extras.copy / row_s, extras.copied_token / row_s
        return CopyCost(per_copy, per_token, per_split=num_layers * per_copy if num_layers else math.inf)

    def rows(self, num_tokens: int) -> float:
        """Rows that a copy of so many tokens costs."""
        return self.per_copy + num_tokens * self.per_token

    def pays(self, num_tokens: int) -> bool:
        """Whether it is cheaper to copy so many tokens than to compute them."""
        return num_tokens >= self.least and self.rows(num_tokens) < num_tokens

    def splits(self, num_tokens: int, num_replicas: int) -> bool:
        """Whether several replicas compute so many tokens in less time than one does."""
        largest = num_tokens / num_replicas
        sent = num_replicas * self.per_token * largest if num_replicas > 1 else math.inf
        return largest >= self.least and largest + self.per_split + sent < num_tokens

    def lag(self, num_missing: int, num_copyable: int) -> int:
        """Rows that a replica pays for the tokens that it lacks, of which another one has computed the first ones."""
        num_missing, num_copyable = max(0, num_missing), max(0, min(num_missing, num_copyable))
        if not self.pays(num_copyable):
            return num_missing
        return num_missing - num_copyable + math.ceil(self.rows(num_copyable))

    def lags(self, num_computed: int, known: Sequence[int]) -> list[int]:
        """Returns the rows that each replica pays before it can compute rows of a step.

        num_computed: the tokens that it must have. known: how many each replica has computed.
        """
        most = max(known)
        return [self.lag(num_computed - number, most - number) for number in known]


NO_COPIES = CopyCost()


class Copy(NamedTuple):
    """Tokens [begin, end) of a sequence whose keys and values one replica gets from another before a step.

    step: the number of the step in its batch.
    """

    step: int
    source: int
    target: int
    begin: int
    end: int


def plan_copies(
    steps: Sequence[StepInput], numbers: Sequence[Sequence[int]], all_shares: Sequence[Shares], cost: CopyCost
) -> list[Copy]:
    """The copies of a batch, in the order in which all ranks carry them out.

    numbers: for each step, how many of its sequence's first tokens each replica has computed. What a replica needs for
    its shares is copied where that pays, from one of those that have all of it: the one that sends the fewest tokens.
    """
    copies: list[Copy] = []
    sent = [0] * len(numbers[0]) if numbers else []
    for place, (step, known, shares) in enumerate(zip(steps, numbers, all_shares, strict=True)):
        most = max(known)
        for replica in sorted({*shares.rows, *shares.feeds}):
            begin, end = known[replica], min(most, shares.feeds.get(replica, step.num_computed))
            if not cost.pays(end - begin):
                continue
            source = min((sent[other], other) for other, number in enumerate(known) if number >= end)[1]
            sent[source] += end - begin
            copies.append(Copy(place, source, replica, begin, end))
    return copies
