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

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CACHED = 256
"""Tokens of the sequence that steps are measured on."""
BUDGET_S = 3.0
"""Seconds after which no further round is begun."""
ROUNDS = 9
CANDIDATES = 8


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
    go_on: Callable[[bool], bool] = lambda wanted: wanted,
) -> StepTimes:
    """Runs steps of growing size, round by round, and takes the median of each size.

    A round measures all sizes, so that a machine that is busy for a while slows all of them. The first is a warm-up.
    go_on: makes of a rank's wish whether to go on the decision of all.
    """
    cached = min(CACHED, max_length // 2)
    sizes = [rows for rows in ROWS if rows <= min(most_rows, max_length - cached)]
    tokens = [token % vocab_size for token in range(1, cached + 1)]
    sequence = TokenSequence("step-times", tokens, cached, Sampling(temperature=0.0, seed=0), CANDIDATES)
    seconds: dict[int, list[float]] = {}
    deadline = time.perf_counter() + BUDGET_S
    runner.open(sequence)
    try:
        for number in range(1 + ROUNDS):
            for rows in sizes:
                if number <= 1 and not go_on(len(seconds) < 2 or time.perf_counter() < deadline):
                    sizes = [size for size in sizes if size < rows]  # a slow machine: the rest is extrapolated
                    break
                taken = _time_step(runner, sequence, bushy_tree(tokens[-1], rows, vocab_size))
                if number:
                    seconds.setdefault(rows, []).append(taken)
            if number and not go_on(time.perf_counter() < deadline):
                break
    finally:
        runner.close(sequence)
    return StepTimes(tuple(seconds), tuple(statistics.median(taken) for taken in seconds.values()))


def _time_step(runner: Runner, sequence: TokenSequence, tree: TokenTree) -> float:
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
