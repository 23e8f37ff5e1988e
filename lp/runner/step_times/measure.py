"""Measures the step-time curves of a runner: the seconds that a step takes, by the number of rows of its tree.

Where ranks share trees, there are two curves: of shared steps, and of steps that one part computes while others rest.

Knows nothing of ranks. Several ranks measure at the same time, and a function that they pass decides for all of them
whether to go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial

from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner, StepInput
from lp.sampling.settings import Sampling
from lp.step_cost import CACHED, DEPTH, StepTimes
from lp.tree import TokenTree, TreeBuilder

# The numbers of rows that are measured. Those that show most of the curve come first.
ROWS = (1, 16, 64, 4, 32, 2, 8, 128, 48, 24, 96, 12, 192, 256)
# The length of the sequence on which kept figures are checked.
CACHED_FOR_CHECK = 32
# At least this many sizes are measured, however slow the machine is.
FEWEST_SIZES = 3
# Seconds of measured steps after which no further size is started: a slow machine gets a curve of fewer points.
FIRST_ROUND_S = 1.0
# The number of rounds lies between these two.
FEWEST_ROUNDS = 3
MOST_ROUNDS = 9
# Seconds after which no further round is started.
BUDGET_S = 3.0
# A timing runs this many steps of the same size one after another, and takes the time of the last.
STEPS_PER_TIMING = 2
# If a step of one row is longer, the model is larger than the processor's caches, so what ran before a step does not
# matter, and a timing is one step.
LONG_STEP_S = 0.02
# The number of drafts of a chain that count as accepted. Where ranks share a tree, the ranks that did not compute these
# rows must do so in the next step.
ACCEPTED = 3
# The number of best tokens that a step returns for each row.
CANDIDATES = 8
# The factor by which steps may have become slower or faster before they are measured again.
LARGEST_CHANGE = 3.0

# A number of rows, and whether all parts of the runner share them.
Size = tuple[int, bool]

# Takes each rank's wish, such as whether to go on, and returns the decision, which is the same on every rank.
GoOn = Callable[[bool], bool]


class StepTimesSource(StrEnum):
    """Where step times come from.

    auto: from the disk if they are there and still hold, else measured. measure: always measured. off: there are none,
    and decoders use steps of a moderate size.
    """

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
    """Times steps of many sizes in several rounds, on a sequence made for it, and takes each size's median.

    A round measures all sizes, so that a machine that is busy for a while slows all of them. Decoders choose by ratios
    of these times; on a busy machine a ratio of medians varies less than a ratio of minima. The first two rounds are
    one, and decide which sizes there is time for.

    most_rows: the most rows of a step that is measured. go_on: decides for all ranks whether to go on.
    """
    num_cached = num_cached_of(max_length, CACHED)
    ways = (True, False) if runner.num_parts > 1 else (True,)
    sizes = [(rows, way) for rows in ROWS if rows <= max(1, min(most_rows, max_length - num_cached)) for way in ways]
    with _stopwatch(runner, vocab_size, max_length, num_cached, go_on) as seconds:
        deadline = time.perf_counter() + BUDGET_S
        timings = dict(_first_rounds(sizes, FEWEST_SIZES * len(ways), seconds, go_on))
        num_rounds = 2
        while num_rounds < MOST_ROUNDS and go_on(num_rounds < FEWEST_ROUNDS or time.perf_counter() < deadline):
            for size, taken in timings.items():
                taken.append(seconds(size))
            num_rounds += 1
    medians = {size: statistics.median(timings[size]) for size in sorted(timings)}
    alone = _curve(medians, False) if runner.num_parts > 1 else None
    shared = _curve(medians, True)
    return StepTimes(shared.rows, shared.seconds, runner.num_parts, alone)


def _curve(medians: dict[Size, float], is_shared: bool) -> StepTimes:
    """The curve of the sizes that are shared, or of those that are not."""
    found = {rows: seconds for (rows, way), seconds in medians.items() if way is is_shared}
    return StepTimes(tuple(found), tuple(found.values()))


def still_holds(
    times: StepTimes, runner: Runner, vocab_size: int, max_length: int, go_on: GoOn = lambda wanted: wanted
) -> bool:
    """Whether a small and a larger step still take about as long as these figures say.

    Figures that were measured while the machine was stopped or overloaded would otherwise be used for ever. A size is
    timed again only if it did not take as long, as something else may have held the machine up.
    """
    num_cached = num_cached_of(max_length, CACHED_FOR_CHECK)
    with _stopwatch(runner, vocab_size, max_length, num_cached, go_on) as seconds:
        for rows in sorted({times.rows[0], times.rows[len(times.rows) // 2]}):
            expected = times.at(rows)
            now = (seconds((rows, True)) for _ in range(FEWEST_ROUNDS))
            if not any(go_on(1 / LARGEST_CHANGE < taken / expected < LARGEST_CHANGE) for taken in now):
                return False
    return True


def num_cached_of(max_length: int, wanted: int) -> int:
    """The length of the measured sequence, which is shorter for a short context."""
    return max(1, min(wanted, max_length // 2))


@contextmanager
def _stopwatch(
    runner: Runner, vocab_size: int, max_length: int, num_cached: int, go_on: GoOn
) -> Iterator[Callable[[Size], float]]:
    """Yields a function that times a step of a size. Its sequence is open, and read, while the body runs."""
    tokens = [token % vocab_size for token in range(1, num_cached + 1)]
    sequence = TokenSequence("step-times", tokens, num_cached, Sampling(temperature=0.0, seed=0))
    num_new = min(1 + ACCEPTED, max(0, max_length - num_cached - DEPTH))
    runner.open(sequence)
    try:
        _run_step(runner, sequence, bushy_tree(tokens[-1], 1, vocab_size))

        def seconds(size: Size, num_steps: int = STEPS_PER_TIMING) -> float:
            return _time_steps(runner, sequence, size, vocab_size, num_new, num_steps)

        one_is_enough = runner.num_parts == 1 and go_on(seconds((1, True)) > LONG_STEP_S)
        yield partial(seconds, num_steps=1) if one_is_enough else seconds
    finally:
        runner.share_trees(None)
        runner.close(sequence)


def _first_rounds(
    sizes: list[Size], fewest: int, seconds: Callable[[Size], float], go_on: GoOn
) -> Iterator[tuple[Size, list[float]]]:
    """Times each size twice, at least `fewest` of them and as long as there is time. Yields sizes and seconds.

    The shorter time decides whether there is time for more sizes: the first step of a size may take long because of
    what is done once, such as capturing a graph.
    """
    spent = 0.0
    for number, size in enumerate(sizes):
        if number >= fewest and not go_on(spent < FIRST_ROUND_S):
            return
        taken = [seconds(size), seconds(size)]
        spent += min(taken)
        yield size, taken


def _time_steps(
    runner: Runner, sequence: TokenSequence, size: Size, vocab_size: int, num_new: int, num_steps: int
) -> float:
    """Runs some steps of equal size and returns the seconds of the last.

    In decoding, too, a step mostly finds the processor's caches as a step of similar size has left them. Every step
    gets a new tree, as what is derived from a tree is computed once and must count in each step. Where ranks share a
    tree, one step is not enough: in the second, ranks compute accepted rows that others have computed.

    num_new: the tokens that a step yields: drafts of the tree's first chain, and one more.
    """
    num_rows, is_shared = size
    num_tokens, taken = len(sequence.tokens), 0.0
    for _ in range(num_steps):
        tree = bushy_tree(sequence.tokens[-1], num_rows, vocab_size)
        taken = _run_step(runner, sequence, tree, is_shared)
        sequence.tokens += [*tree.tokens[1:num_new].tolist(), 0][:num_new]
    del sequence.tokens[num_tokens:]
    return taken


def _run_step(runner: Runner, sequence: TokenSequence, tree: TokenTree, is_shared: bool = True) -> float:
    """Runs a step and returns its seconds."""
    runner.share_trees(is_shared)
    begin = time.perf_counter()
    runner.start([StepInput.of(sequence, tree, CANDIDATES)])
    runner.finish()
    return time.perf_counter() - begin


def bushy_tree(root: int, num_rows: int, vocab_size: int) -> TokenTree:
    """A tree of `num_rows` rows, shaped like those of decoding: chains under the root, which ranks can share."""
    builder = TreeBuilder(root)
    for row in range(1, num_rows):
        builder.add(row % vocab_size, row - 1 if row % DEPTH != 1 else 0)
    return builder.build()


def describe(times: StepTimes) -> str:
    """The step times on one line: rows and milliseconds."""
    curve = ", ".join(f"{rows}: {1000 * seconds:.2f}" for rows, seconds in zip(times.rows, times.seconds, strict=True))
    return f"{curve}; on one part while the others rest {describe(times.alone)}" if times.alone else curve
