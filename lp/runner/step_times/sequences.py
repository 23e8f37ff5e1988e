"""Measures what one more sequence in a step takes, and what a thousand more cached tokens take.

The rows are as many in all steps that are compared, so the step-time curve, which is that of one sequence, tells the
rest. Knows nothing of ranks: as in measure.py, a function that they pass decides for all of them whether to go on.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner, StepInput
from lp.runner.step_times.measure import CANDIDATES, GoOn, make_sequence, num_cached_of
from lp.step_cost import CACHED, CACHED_ROWS
from lp.tree import chain

# Sequences of a step for each part of the runner, one row each.
NUM_SEQUENCES = CACHED_ROWS
# The length of the long sequence, as far as there is time to compute it.
LONG = 2048
# Rows of the long sequence that are computed at a time.
CHUNK = 128
# Seconds for which the long sequence is extended, and seconds of all timings. Each step is timed this often at least
# and at most.
EXTENDING_S, TIMING_S = 0.5, 0.5
FEWEST_ROUNDS, MOST_ROUNDS = 3, 9


class SequenceCost(NamedTuple):
    """Seconds of one more sequence in a step, and of a thousand more cached tokens."""

    sequence_s: float
    thousand_cached_s: float


def measure_sequences(
    runner: Runner, vocab_size: int, max_length: int, go_on: GoOn = lambda wanted: wanted
) -> SequenceCost:
    """Times steps of several sequences with one row each, of one sequence with as many rows, and of a long one.

    The rows of one sequence are a chain, which one part computes; those of the others are dealt out to all parts.
    """
    num_cached = num_cached_of(max_length, CACHED)
    num_rows = max(1, min(NUM_SEQUENCES, max_length - num_cached))
    one, long = (make_sequence(f"step-times-{name}", num_cached, vocab_size) for name in ("one", "long"))
    # The caches of a part's sequences hold together as many tokens as that of the one sequence.
    length, number = max(1, num_cached // num_rows), num_rows * runner.num_parts
    several = [make_sequence(f"step-times-{place}", length, vocab_size) for place in range(number)]
    opened = []
    runner.share_trees(True)
    try:
        for sequence in (one, long, *several):
            runner.open(sequence)
            opened.append(sequence)
        _extend(runner, long, min(LONG, max_length - num_rows), vocab_size, go_on)
        batches = [_chain(one, num_rows, vocab_size)], [_chain(each, 1, vocab_size) for each in several]
        times = _medians(runner, [*batches, [_chain(long, num_rows, vocab_size)]], go_on)
    finally:
        runner.share_trees(None)
        for sequence in opened:
            runner.close(sequence)
    alone_s, together_s, long_s = times
    more_tokens = len(long.tokens) - num_cached
    return SequenceCost(
        max(0.0, together_s - alone_s) / max(1, num_rows - 1),
        max(0.0, long_s - alone_s) * 1000 / more_tokens if more_tokens else 0.0,
    )


def _chain(sequence: TokenSequence, num_rows: int, vocab_size: int) -> StepInput:
    """A step whose tree is a chain."""
    tokens = [sequence.tokens[-1], *(row % vocab_size for row in range(1, num_rows))]
    return StepInput.of(sequence, chain(tokens), CANDIDATES)


def _extend(runner: Runner, sequence: TokenSequence, longest: int, vocab_size: int, go_on: GoOn) -> None:
    """Lets the runner compute a sequence, and more and more tokens of it while there is time."""
    begin = time.perf_counter()
    _run(runner, [_chain(sequence, 1, vocab_size)])
    while len(sequence.tokens) < longest and go_on(time.perf_counter() - begin < EXTENDING_S):
        more = range(len(sequence.tokens), min(longest, len(sequence.tokens) + CHUNK))
        sequence.tokens += [token % vocab_size for token in more]
        _run(runner, [_chain(sequence, 1, vocab_size)])


def _medians(runner: Runner, batches: list[list[StepInput]], go_on: GoOn) -> list[float]:
    """The median seconds of each batch of steps."""
    for batch in batches:  # the first step of a batch may do what is done once
        _run(runner, batch)
    timings: list[list[float]] = [[] for _ in batches]
    begin = time.perf_counter()
    for number in range(MOST_ROUNDS):
        if not go_on(number < FEWEST_ROUNDS or time.perf_counter() - begin < TIMING_S):
            break
        for batch, taken in zip(batches, timings, strict=True):
            taken.append(_run(runner, batch))
    return [statistics.median(taken) if taken else 0.0 for taken in timings]


def _run(runner: Runner, steps: list[StepInput]) -> float:
    """Runs a batch of steps and returns its seconds."""
    begin = time.perf_counter()
    runner.start(steps)
    runner.finish()
    return time.perf_counter() - begin
