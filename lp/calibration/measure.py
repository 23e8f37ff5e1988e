"""Measures the step-time curve of a runner: what a step costs by the rows of its tree, whatever the mode.

Knows nothing of ranks: where there are several, all measure together and ask rank 0 whether to go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from lp.request import Sequence as TokenSequence
from lp.runner import Runner, StepInput
from lp.sampling.settings import Sampling
from lp.step_cost import DEPTH, StepTimes
from lp.tree import TokenTree, TreeBuilder

ROWS = (1, 16, 64, 4, 32, 128, 8, 48, 24, 96, 2, 12, 192, 256)
"""Numbers of rows that are measured, those first that say most of the curve."""
CACHED = 256
"""Tokens of the sequence that steps are measured on."""
FEWEST_SIZES = 3
WARM_UP_S = 3.0
"""Seconds after which no further size is begun with: a slow machine has a curve of fewer points."""
FEWEST_ROUNDS = 3
MOST_ROUNDS = 9
BUDGET_S = 3.0
"""Seconds after which no further round is begun."""
NUM_LIKE = 2
"""Steps of a size in a row, of which the last counts."""
ACCEPTED = 3
"""Drafts of a chain that are taken for right: where ranks share a tree, those that did not compute them have to do so
in the next step.
"""
CANDIDATES = 8
LARGEST_CHANGE = 3.0
"""Factor by which a machine at work may be slower or faster than it was."""

GoOn = Callable[[bool], bool]
"""Makes of each rank's wish whether to go on the decision of all."""


class StepTimesSource(StrEnum):
    """auto: from the disk, or else measured. measure: measured anew. off: unknown, and steps have a moderate size."""

    auto = "auto"
    measure = "measure"
    off = "off"


def measure_step_times(
    runner: Runner,
    vocab_size: int,
    max_length: int,
    most_rows: int,
    go_on: GoOn = lambda wanted: wanted,
) -> StepTimes:
    """Runs steps of many sizes, round by round, on a sequence of its own, and takes the median of each size.

    A round measures all sizes, so that a machine that is busy for a while slows all of them. On a busy machine the
    ratio of two medians, by which decoders choose, varies less than that of two minima.
    """
    cached = _num_cached(max_length)
    sizes = [rows for rows in ROWS if rows <= max(1, min(most_rows, max_length - cached))]
    with _stopwatch(runner, vocab_size, max_length) as seconds:
        sizes = _warm_up(sizes, seconds, go_on)
        deadline = time.perf_counter() + BUDGET_S
        rounds = [list(map(seconds, sizes))]
        while len(rounds) < MOST_ROUNDS and go_on(len(rounds) < FEWEST_ROUNDS or time.perf_counter() < deadline):
            rounds.append(list(map(seconds, sizes)))
    return StepTimes(tuple(sizes), tuple(map(statistics.median, zip(*rounds, strict=True))), runner.num_parts)


def still_holds(times: StepTimes, runner: Runner, vocab_size: int, max_length: int) -> bool:
    """Whether a small and a large step take about as long as they once did: a machine that was stopped or overloaded
    while it was measured would be misjudged for ever. Not the same on all ranks.
    """
    sizes = {times.rows[0], times.rows[len(times.rows) // 2]}
    with _stopwatch(runner, vocab_size, max_length) as seconds:
        now = {rows: min(seconds(rows) for _ in range(FEWEST_ROUNDS)) for rows in sizes}
    return all(1 / LARGEST_CHANGE < now[rows] / times.at(rows) < LARGEST_CHANGE for rows in sizes)


def _num_cached(max_length: int) -> int:
    return max(1, min(CACHED, max_length // 2))


@contextmanager
def _stopwatch(runner: Runner, vocab_size: int, max_length: int) -> Iterator[Callable[[int], float]]:
    """Seconds of a step by its rows, on a sequence that is there as long as the body runs."""
    num_cached = _num_cached(max_length)
    tokens = [token % vocab_size for token in range(1, num_cached + 1)]
    sequence = TokenSequence("step-times", tokens, num_cached, Sampling(temperature=0.0, seed=0))
    num_new = min(1 + ACCEPTED, max(0, max_length - num_cached - DEPTH))
    runner.open(sequence)
    try:
        yield lambda rows: _time_step(runner, sequence, rows, vocab_size, num_new)
    finally:
        runner.close(sequence)


def _warm_up(sizes: list[int], seconds: Callable[[int], float], go_on: GoOn) -> list[int]:
    """Runs a step of each size that there is time for; returns those sizes, ascending."""
    deadline = time.perf_counter() + WARM_UP_S
    for number, num_rows in enumerate(sizes):
        if number >= FEWEST_SIZES and not go_on(time.perf_counter() < deadline):
            return sorted(sizes[:number])
        seconds(num_rows)
    return sorted(sizes)


def _time_step(runner: Runner, sequence: TokenSequence, num_rows: int, vocab_size: int, num_new: int) -> float:
    """Seconds of the last of some steps of equal size: in decoding, too, a step mostly finds the processor's caches as
    one of its like has left them. Trees are new, as what is worked out of a tree belongs to its step.

    num_new: tokens that a step yields: drafts of the first chain, as far as there are, and one more.
    """
    num_tokens, begin, end = len(sequence.tokens), 0.0, 0.0
    for _ in range(NUM_LIKE):
        tree = bushy_tree(sequence.tokens[-1], num_rows, vocab_size)
        begin = time.perf_counter()
        runner.start([StepInput(sequence, tree, CANDIDATES)])
        runner.finish()
        end = time.perf_counter()
        sequence.tokens += [*tree.tokens[1:num_new].tolist(), 0][:num_new]
    del sequence.tokens[num_tokens:]
    return end - begin


def bushy_tree(root: int, num_rows: int, vocab_size: int) -> TokenTree:
    """A tree shaped like those of decoding: chains under the root, so that it can be shared among ranks."""
    builder = TreeBuilder(root)
    for row in range(1, num_rows):
        builder.add(row % vocab_size, row - 1 if row % DEPTH != 1 else 0)
    return builder.build()


def describe(times: StepTimes) -> str:
    """On one line, in milliseconds."""
    return ", ".join(f"{rows}: {1000 * seconds:.2f}" for rows, seconds in zip(times.rows, times.seconds, strict=True))
