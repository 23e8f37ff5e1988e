"""Measures the step-time curve of a runner: what a step costs by the rows of its tree, whatever the mode.

Knows nothing of ranks: where there are several, all measure together and ask rank 0 whether to go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from enum import StrEnum

from lp.request import Sequence as TokenSequence
from lp.runner import Runner
from lp.sampling import Sampling
from lp.step_times import StepTimes
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
CANDIDATES = 8

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
    cached = max(1, min(CACHED, max_length // 2))
    sizes = [rows for rows in ROWS if rows <= max(1, min(most_rows, max_length - cached))]
    tokens = [token % vocab_size for token in range(1, cached + 1)]
    sequence = TokenSequence("step-times", tokens, cached, Sampling(temperature=0.0, seed=0), CANDIDATES)

    def seconds(num_rows: int) -> float:
        return _time_step(runner, sequence, [bushy_tree(tokens[-1], num_rows, vocab_size) for _ in range(2)])

    runner.open(sequence)
    try:
        sizes = _warm_up(sizes, seconds, go_on)
        deadline = time.perf_counter() + BUDGET_S
        rounds = [list(map(seconds, sizes))]
        while len(rounds) < MOST_ROUNDS and go_on(len(rounds) < FEWEST_ROUNDS or time.perf_counter() < deadline):
            rounds.append(list(map(seconds, sizes)))
    finally:
        runner.close(sequence)
    return StepTimes(tuple(sizes), tuple(map(statistics.median, zip(*rounds, strict=True))))


def _warm_up(sizes: list[int], seconds: Callable[[int], float], go_on: GoOn) -> list[int]:
    """Runs a step of each size that there is time for; returns those sizes, ascending."""
    deadline = time.perf_counter() + WARM_UP_S
    for number, num_rows in enumerate(sizes):
        if number >= FEWEST_SIZES and not go_on(time.perf_counter() < deadline):
            return sorted(sizes[:number])
        seconds(num_rows)
    return sorted(sizes)


def _time_step(runner: Runner, sequence: TokenSequence, trees: list[TokenTree]) -> float:
    """Seconds of the last of some steps of equal size: in decoding, too, a step mostly finds the processor's caches as
    one of its like has left them. Trees are new, as what is worked out of a tree belongs to its step.
    """
    begin = 0.0
    for tree in trees:
        begin = time.perf_counter()
        runner.start(sequence, tree)
        runner.finish(sequence)
    return time.perf_counter() - begin


def bushy_tree(root: int, num_rows: int, vocab_size: int) -> TokenTree:
    """A tree shaped like those of decoding: chains of four under the root, so that it can be shared among ranks."""
    builder = TreeBuilder(root)
    for row in range(1, num_rows):
        builder.add(row % vocab_size, row - 1 if row % 4 != 1 else 0)
    return builder.build()


def describe(times: StepTimes) -> str:
    """On one line, in milliseconds."""
    return ", ".join(f"{rows}: {1000 * seconds:.2f}" for rows, seconds in zip(times.rows, times.seconds, strict=True))
