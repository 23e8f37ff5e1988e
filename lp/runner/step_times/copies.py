"""Measures what it takes to copy keys and values from one replica to another, where a runner can.

Knows nothing of ranks: as in measure.py, all of them measure at the same time.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from lp.runner.runner import Runner, StepInput
from lp.runner.step_times.measure import make_sequence, num_cached_of
from lp.step_cost import CACHED, LEAST_COPIED
from lp.tree import chain

# Copies of each length, after one that does not count.
ROUNDS = 5


class CopyTimes(NamedTuple):
    """Seconds of a copy, whatever its length, and of each of its tokens; 0 where nothing can be copied."""

    copy_s: float = 0.0
    token_s: float = 0.0


def measure_copies(runner: Runner, vocab_size: int, max_length: int, most_tokens: int = 2 * CACHED) -> CopyTimes:
    """Times copies of a few and of many tokens, which one replica has computed. All ranks call this together."""
    many = num_cached_of(max_length, most_tokens)
    few = LEAST_COPIED
    if not runner.can_copy or many <= few:
        return CopyTimes()
    sequence = make_sequence("step-times-copy", many + 1, vocab_size)
    runner.open(sequence)
    runner.share_trees(False)
    try:
        runner.start([StepInput.of(sequence, chain(sequence.tokens[-1:]))])
        runner.finish()
        seconds = [
            statistics.median([runner.time_copy(sequence, number) for _ in range(1 + ROUNDS)][1:])
            for number in (few, many)
        ]
    finally:
        runner.share_trees(None)
        runner.close(sequence)
    token_s = max((seconds[1] - seconds[0]) / (many - few), seconds[1] / many / 10)
    return CopyTimes(max(0.0, seconds[0] - few * token_s), token_s)
