"""Measures the step-time curves of a runner: the seconds that a step takes, by the number of rows of its tree.

Where ranks share trees, there are two curves: of shared steps, and of steps that one part computes while others rest.

Knows nothing of ranks. Several ranks measure at the same time, and a function that they pass decides for all of them
whether to go on.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from lp.model.causal import CausalModel
from lp.model.extensions import ROUND_ROWS
from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner, StepInput
from lp.runner.step_times.learn import ServedStep, Trial, rising
from lp.sampling.settings import Sampling
from lp.step_cost import CACHED, DEPTH, StepTimes, descending
from lp.tree import TokenTree, TreeBuilder, chain

# The numbers of rows that are measured. Those that show most of the curve come first.
ROWS = (1, 16, 64, 4, 32, 2, 8, 128, 48, 24, 96, 12, 192, 256)
# A timing runs this many steps of the same size one after another, and takes the time of the last.
STEPS_PER_TIMING = 2
# The sizes that are timed where parts share trees, however slow the machine is: whether a large tree is shared follows
# from what one costs, and a line through 1 and 16 rows does not show that.
FEWEST_SHARED = 3
# If a step of one row is longer, the model is larger than the processor's caches, so what ran before a step does not
# matter, and a timing is one step.
LONG_STEP_S = 0.02
# The number of drafts of a chain that count as accepted. Where ranks share a tree, the ranks that did not compute these
# rows must do so in the next step.
ACCEPTED = 3
# Rounds of timed forwards of a second model: the most, and the fewest, after which none begins later than this.
RELATIVE_ROUNDS, FEWEST_RELATIVE_ROUNDS, RELATIVE_BUDGET_S = 7, 3, 2.0
# The number of best tokens that a step returns for each row.
CANDIDATES = 8
# A number of rows, and whether all parts of the runner share them.
Size = tuple[int, bool]

# Takes each rank's wish, such as whether to go on, and returns the decision, which is the same on every rank.
GoOn = Callable[[bool], bool]


class Effort(NamedTuple):
    """How thoroughly is measured.

    num_cached: tokens of the sequence of which steps are timed. fewest_sizes: sizes that are timed, however slow the
    machine is. first_round_s: seconds of timed steps after which no further size is begun: a slow machine gets a curve
    of fewer points. rounds: the fewest and the most. budget_s: seconds after which no further round is begun.
    is_quick: whether a timing is a single step, whatever ran before it, where no parts share trees.
    """

    num_cached: int
    fewest_sizes: int
    first_round_s: float
    rounds: tuple[int, int]
    budget_s: float
    is_quick: bool = False


# As long as a person is ready to wait for who asked for it, and what a program does by itself when it starts.
THOROUGH = Effort(CACHED, 3, 1.0, (3, 9), 3.0)
QUICK = Effort(32, 2, 0.08, (2, 2), 0.0, is_quick=True)


class StepTimesSource(StrEnum):
    """Where step times come from.

    auto: from the disk, else from a few quick steps, and then learnt from the steps that are served. measure: measured
    thoroughly, and then learnt as well. fixed: from the disk, else measured thoroughly, and nothing is learnt, so that
    a run can be repeated step by step. off: there are none, and decoders use steps of a moderate size.
    """

    auto = "auto"
    measure = "measure"
    fixed = "fixed"
    off = "off"

    @property
    def learns(self) -> bool:
        """Whether step times follow the steps that are served."""
        return self in (StepTimesSource.auto, StepTimesSource.measure)


def measure_step_times(
    runner: Runner,
    vocab_size: int,
    max_length: int,
    most_rows: int,
    go_on: GoOn = lambda wanted: wanted,
    effort: Effort = THOROUGH,
) -> StepTimes:
    """Times steps of many sizes in several rounds, on a sequence made for it, and takes each size's median.

    A round measures all sizes, so that a machine that is busy for a while slows all of them. Decoders choose by ratios
    of these times; on a busy machine a ratio of medians varies less than a ratio of minima. The first two rounds are
    one, and decide which sizes there is time for.

    most_rows: the most rows of a step that is measured. go_on: decides for all ranks whether to go on.
    """
    num_cached, (fewest, most) = num_cached_of(max_length, effort.num_cached), effort.rounds
    ways = (True, False) if runner.num_parts > 1 else (True,)
    sizes = [(rows, way) for rows in ROWS if rows <= max(1, min(most_rows, max_length - num_cached)) for way in ways]
    with _stopwatch(runner, vocab_size, max_length, num_cached, effort.is_quick, go_on) as seconds:
        deadline = time.perf_counter() + effort.budget_s
        fewest_sizes = effort.fewest_sizes if runner.num_parts == 1 else max(effort.fewest_sizes, FEWEST_SHARED)
        timings = dict(_first_rounds(sizes, fewest_sizes * len(ways), effort.first_round_s, seconds, go_on))
        num_rounds = 2
        while num_rounds < most and go_on(num_rounds < fewest or time.perf_counter() < deadline):
            for size, taken in timings.items():
                taken.append(seconds(size))
            num_rounds += 1
    medians = {size: statistics.median_low(timings[size]) for size in sorted(timings)}
    all_rows = sorted({rows for rows, _ in sizes})
    alone = _curve(medians, False, 1, all_rows) if runner.num_parts > 1 else None
    shared = _curve(medians, True, runner.num_parts, all_rows)
    return dataclasses.replace(shared, alone=alone, learnt_at=time.time())


def measure_relative_costs(runner: Runner, main: CausalModel, second: CausalModel, go_on: GoOn) -> tuple[float, ...]:
    """Times forwards of a second model with each of ROUND_ROWS, in plain steps of the main model.

    All take turns, so that a machine that is busy for a while slows all. runner: of the main model. go_on: see
    `measure_step_times`.
    """
    num_cached = num_cached_of(min(main.max_length, second.max_length), QUICK.num_cached)
    tokens = make_sequence("relative-cost", num_cached, second.vocab_size).tokens
    cache = second.make_cache(num_cached + ROUND_ROWS[-1])
    second.forward(chain(tokens), cache, 1)
    cache.keep(range(num_cached))
    plain, taken = list[float](), {num_rows: list[float]() for num_rows in ROUND_ROWS}
    with _stopwatch(runner, main.vocab_size, main.max_length, num_cached, True, go_on) as seconds:
        deadline = time.perf_counter() + RELATIVE_BUDGET_S
        while len(plain) < RELATIVE_ROUNDS and go_on(
            len(plain) < FEWEST_RELATIVE_ROUNDS or time.perf_counter() < deadline
        ):
            plain.append(seconds((1, True)))
            for num_rows, times in taken.items():
                begin = time.perf_counter()
                second.forward(bushy_tree(tokens[-1], num_rows, second.vocab_size), cache, num_rows).argmax(1).tolist()
                times.append(time.perf_counter() - begin)
    cache.release()
    medians = [statistics.median(times) / statistics.median(plain) for times in taken.values()]
    return tuple(accumulate(medians, max))


def _curve(medians: dict[Size, float], is_shared: bool, num_parts: int, all_rows: list[int]) -> StepTimes:
    """The curve of the sizes that are shared, or of those that are not, at all these rows.

    Times between two that were measured, and beyond the last, are on the lines through those: what a step takes to read
    the weights, and what each row adds. Where a step takes longer than one of more rows, something else has held it up,
    and the mean of both counts.
    """
    found = {rows: seconds for (rows, way), seconds in medians.items() if way is is_shared}
    never_falling = [-one for one in descending([-seconds for seconds in found.values()])]
    measured = StepTimes(tuple(found), rising(tuple(found), never_falling, num_parts))
    seconds = rising(all_rows, [measured.at(rows) for rows in all_rows], num_parts)
    return StepTimes(tuple(all_rows), seconds, num_parts)


def num_cached_of(max_length: int, wanted: int) -> int:
    """The length of the measured sequence, which is shorter for a short context."""
    return max(1, min(wanted, max_length // 2))


def num_accepted(max_length: int, num_cached: int) -> int:
    """How many tokens a timed step yields after so many."""
    return min(1 + ACCEPTED, max(0, max_length - num_cached - DEPTH))


def accepted_of(tree: TokenTree, num_new: int) -> list[int]:
    """The tokens that a timed step yields: drafts of the tree's first chain, and one more."""
    return [*tree.tokens[1:num_new].tolist(), 0][:num_new]


def make_sequence(name: str, length: int, vocab_size: int) -> TokenSequence:
    """A sequence of made-up tokens whose steps are timed."""
    tokens = [token % vocab_size for token in range(1, length + 1)]
    return TokenSequence(name, tokens, length, Sampling(temperature=0.0, seed=0))


@contextmanager
def _stopwatch(
    runner: Runner, vocab_size: int, max_length: int, num_cached: int, is_quick: bool, go_on: GoOn
) -> Iterator[Callable[[Size], float]]:
    """Yields a function that times a step of a size. Its sequence is open, and read, while the body runs."""
    sequence = make_sequence("step-times", num_cached, vocab_size)
    tokens = sequence.tokens
    num_new = num_accepted(max_length, num_cached)
    runner.open(sequence)
    try:
        _run_step(runner, sequence, bushy_tree(tokens[-1], 1, vocab_size))

        def seconds(size: Size, num_steps: int = STEPS_PER_TIMING) -> float:
            return _time_steps(runner, sequence, size, vocab_size, num_new, num_steps)

        one_is_enough = runner.num_parts == 1 and (is_quick or go_on(seconds((1, True)) > LONG_STEP_S))
        yield partial(seconds, num_steps=1) if one_is_enough else seconds
    finally:
        runner.share_trees(None)
        runner.close(sequence)


def _first_rounds(
    sizes: list[Size], fewest: int, budget_s: float, seconds: Callable[[Size], float], go_on: GoOn
) -> Iterator[tuple[Size, list[float]]]:
    """Times each size twice, at least `fewest` of them and as long as there is time. Yields sizes and seconds.

    The shorter time decides whether there is time for more sizes: the first step of a size may take long because of
    what is done once, such as capturing a graph.
    """
    spent = 0.0
    for number, size in enumerate(sizes):
        if number >= fewest and not go_on(spent < budget_s):
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
        sequence.tokens += accepted_of(tree, num_new)
    del sequence.tokens[num_tokens:]
    return taken


def _run_step(
    runner: Runner, sequence: TokenSequence, tree: TokenTree, is_shared: bool = True, num_candidates: int = CANDIDATES
) -> float:
    """Runs a step and returns its seconds."""
    runner.share_trees(is_shared)
    begin = time.perf_counter()
    runner.start([StepInput.of(sequence, tree, num_candidates)])
    runner.finish()
    return time.perf_counter() - begin


def bushy_tree(root: int, num_rows: int, vocab_size: int) -> TokenTree:
    """A tree of `num_rows` rows, shaped like those of decoding: chains under the root, which ranks can share."""
    builder = TreeBuilder(root)
    for row in range(1, num_rows):
        builder.add(row % vocab_size, row - 1 if row % DEPTH != 1 else 0)
    return builder.build()


class Trials:
    """Runs single steps of a sequence made for it, while nobody waits for one. All ranks do so together.

    Where parts share trees, a step counts if it follows one of the same kind, whose accepted rows some parts lack, as
    in decoding; the one before only prepares it.
    """

    def __init__(self, runner: Runner, vocab_size: int, max_length: int):
        self._runner, self._vocab_size = runner, vocab_size
        self._length = num_cached_of(max_length, QUICK.num_cached)
        self._num_new = num_accepted(max_length, self._length)
        self._sequence = make_sequence("step-times-trial", self._length, vocab_size)
        runner.open(self._sequence)
        self._is_read = False
        self._prepared: Trial | None = None

    def run(self, trial: Trial) -> ServedStep | None:
        """Runs a step. Returns None if it only prepares the next one: the first one reads the sequence."""
        tokens = self._sequence.tokens
        if not self._is_read:
            self._is_read = True
            self._run_step(bushy_tree(tokens[-1], 1, self._vocab_size), trial)
            return None
        is_prepared = self._runner.num_parts == 1 or trial == self._prepared
        if not is_prepared:  # what follows a step of another kind is dropped
            del tokens[self._length :]
        tree = bushy_tree(tokens[-1], trial.num_rows, self._vocab_size)
        seconds = self._run_step(tree, trial)
        if not is_prepared:
            tokens += accepted_of(tree, self._num_new)
            self._prepared = trial
            return None
        self._prepared, length = None, len(tokens)
        del tokens[self._length :]
        return ServedStep(trial.num_rows, trial.is_shared, 1, length, trial.is_plain, False, seconds)

    def _run_step(self, tree: TokenTree, trial: Trial) -> float:
        seconds = _run_step(self._runner, self._sequence, tree, trial.is_shared, 0 if trial.is_plain else CANDIDATES)
        self._runner.share_trees(None)
        return seconds

    def close(self) -> None:
        self._runner.close(self._sequence)


def origin(times: StepTimes, now: float | None = None) -> str:
    """Where step times come from, as "learnt from 1,204 steps, the last 3 min ago". now: in seconds since 1970."""
    age_s = max(0.0, (time.time() if now is None else now) - times.learnt_at)
    units = (86400, "days"), (3600, "h"), (60, "min"), (1, "s")
    ago = next((f"{age_s / size:.0f} {unit} ago" for size, unit in units if age_s >= 2 * size), "just now")
    if not times.num_steps:
        return f"measured {ago}" if times.learnt_at else "measured"
    return f"learnt from {times.num_steps:,} step{'s' * (times.num_steps > 1)}, the last {ago}"


def describe(times: StepTimes) -> str:
    """The step times on one line: rows and milliseconds."""
    curve = ", ".join(f"{rows}: {1000 * seconds:.2f}" for rows, seconds in zip(times.rows, times.seconds, strict=True))
    return f"{curve}; on one part while the others rest {describe(times.alone)}" if times.alone else curve
