"""Learns what steps take from the steps that are served.

Two things are learnt apart. The *load* is one factor on all steps, the median of what the last steps took over what was
expected; it follows whatever else the machine does within about twenty steps. The *shape*, how the seconds depend on
rows, sequences, cached tokens and sampling, is learnt from pairs of consecutive steps: both have the same load, so the
ratio of their seconds tells of the shape alone. Decisions depend on ratios of seconds, so they follow the shape; a
change of load changes none of them.

Of each part of a step's seconds a logarithm is learnt, its correction, by least squares with weights that fall with age
and with the distance from what was expected (Huber, 1964). A part that was not seen keeps to its neighbours: the
corrections of neighbouring points of a curve are thought to be alike. Knows nothing of ranks: one process learns, and
others are told.

    P corrections, N pairs of steps
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import NamedTuple

import numpy as np

from lp.step_cost import CACHED, USUAL_ROWS, Extras, StepTimes

# Steps whose median is the load.
LOAD_STEPS = 16
# Pairs of steps that are kept, and what one counts for with each later pair.
NUM_PAIRS, KEPT = 256, 0.995
# The spread of the logarithm of a pair's ratio; a pair that is farther off counts for less.
SPREAD = 0.1
# How far corrections may be off before anything was seen: of a point of a curve, of a neighbouring one, of the rest.
OF_POINT, OF_NEIGHBOUR, OF_REST = 1.0, 0.3, 0.7
# New pairs after which the corrections are computed anew, at first and later; and rounds in which they are, as it
# depends on them which pairs are far off.
PAIRS_BETWEEN_FITS, ROUNDS = (8, 32), 4
# Steps between two changes of which others are told.
STEPS_BETWEEN_CHANGES = 16
# A point of a curve that was seen this often is not tried any more, nor is one that takes longer than this.
OFTEN, LONGEST_TRIAL_S = 3.0, 0.15
# Two steps tell nothing of each other if no part has a share in them that differs by more than this.
LEAST_DIFFERENCE = 1e-3
# The change of any point from which on others should be told.
LEAST_CHANGE = 0.03
# A row takes at least this share of a step of one row: a processor does some hundred operations in the time in which it
# reads one number. So no curve is flat, whatever was measured.
LEAST_RISE = 1 / 300
# The host's own work, with weights in steps: what a step keeps with each later one, what the first figures have, and
# what the last ones have, without which equal steps would leave the parts of this work undetermined.
HOST_KEPT, HOST_PRIOR, HOST_LAST = 0.99, 8.0, 0.1
# The last steps that are kept until the figures are computed anew: more would count for next to nothing.
HOST_STEPS = 512


class ServedStep(NamedTuple):
    """A step that was served. num_rows: of all its trees. is_shared: whether all parts of the runner computed some of
    them. num_cached: tokens in all caches. is_plain: one row for each sequence, no candidates. is_sampled: whether
    tokens are sampled rather than chosen greedily. seconds: without the host's own work between two steps. host_s: that
    work before the step; None if the step did not follow another one at once.
    """

    num_rows: int
    is_shared: bool
    num_sequences: int
    num_cached: int
    is_plain: bool
    is_sampled: bool
    seconds: float
    host_s: float | None = None


class Trial(NamedTuple):
    """A step of one sequence that is run to learn its time; see ServedStep."""

    num_rows: int
    is_shared: bool
    is_plain: bool


class _Curve(NamedTuple):
    """Points of a curve by the rows of the largest part. first: the number of its first correction."""

    times: StepTimes
    first: int

    def weights(self, num_rows: int) -> dict[int, float]:
        """The numbers of the corrections that count at so many rows, and how much each does; they add up to 1."""
        rows = self.times.rows
        above = bisect_left(rows, num_rows)
        if above == 0 or above == len(rows):
            return {self.first + min(above, len(rows) - 1): 1.0}
        share = (num_rows - rows[above - 1]) / (rows[above] - rows[above - 1])
        return {self.first + above - 1: 1 - share, self.first + above: share}


class StepTimesLearner:
    """Step times that follow what steps take.

    load: the factor by which steps took longer lately than `times` says. num_steps: steps that the figures rest on,
    those that an earlier process has learnt from included. has_change: whether `times` has changed so much since
    `take_change` that others should follow it.
    """

    def __init__(self, times: StepTimes, num_parts: int = 1):
        """times: what to begin with. num_parts: parts of the runner, by which rows are shared."""
        self.load, self.num_steps = 1.0, times.num_steps
        self._base, self._num_parts = times, num_parts
        shared = times.by_part()
        self._shared = _Curve(shared, 0)
        self._alone = times.alone and _Curve(times.alone, len(shared.rows))
        num_points = len(shared.rows) + (len(times.alone.rows) if times.alone else 0)
        self._plain, self._sequence, self._cached, self._sampled = range(num_points, num_points + 4)
        # [P] the corrections. Of the last pairs: by how much more of some parts the later step has, and by which factor
        # its seconds were more than expected without corrections, as a logarithm.
        self._corrections = [0.0] * (num_points + 4)
        self._pairs: deque[tuple[dict[int, float], float]] = deque(maxlen=NUM_PAIRS)
        self._num_pairs, self._num_new = 0, 0
        # [P, P] how sure the corrections are without.
        self._prior = self._make_prior()
        self._recent: deque[float] = deque(maxlen=LOAD_STEPS)
        self._last: tuple[ServedStep, dict[int, float], float] | None = None
        self._host = _HostWork(times.extras)
        self.times = self._told = times
        self.has_change = False
        self._told_at = times.num_steps
        # How often each point of a curve was seen, and plain steps; earlier processes have tried all of them.
        has_tried = times.num_steps >= OFTEN * (num_points + 1)
        self._num_seen = [OFTEN * has_tried] * (num_points + 1)

    def _make_prior(self) -> np.ndarray:
        prior = np.zeros((len(self._corrections), len(self._corrections)))

        def tie(one: int, other: int | None, spread: float) -> None:
            direction = np.zeros(len(prior))
            direction[one] = 1.0
            if other is not None:
                direction[other] = -1.0
            prior[:] += np.outer(direction, direction) / spread**2

        for curve in filter(None, (self._shared, self._alone)):
            last = curve.first + len(curve.times.rows)
            for point in range(curve.first, last):
                tie(point, None, OF_POINT)
            for point, following in pairwise(range(curve.first, last)):
                tie(point, following, OF_NEIGHBOUR)
        if self._alone:
            tie(self._shared.first, self._alone.first, OF_NEIGHBOUR)
        tie(self._plain, (self._alone or self._shared).first, OF_NEIGHBOUR)
        for rest in (self._sequence, self._cached, self._sampled):
            tie(rest, None, OF_REST)
        return prior

    def expected_s(self, step: ServedStep) -> float:
        """The seconds that such a step takes, at the present load."""
        return self.load * self._describe(step)[1]

    def learn(self, step: ServedStep | None) -> None:
        """Learns from a step, and compares the next one with it; not after None."""
        if step is None or step.seconds <= 0:
            self._last = None
            return
        self.num_steps += 1
        parts, expected_s = self._describe(step)
        ratio = math.log(step.seconds / expected_s)
        for one, of in parts.items():
            if one <= self._plain:
                self._num_seen[one] += of
        self._recent.append(ratio)
        self.load = math.exp(statistics.median(self._recent))
        self._host.learn(step, self.load)
        if self._last is not None:
            self._compare(self._last[1], parts, ratio - self._last[2])
        self._last = step, parts, ratio
        if self._num_new >= PAIRS_BETWEEN_FITS[self._num_pairs > NUM_PAIRS]:
            self._fit()

    def _compare(self, parts: dict[int, float], later: dict[int, float], ratio: float) -> None:
        """Notes a pair of steps. parts, later: the share of each part in their seconds. ratio: see `learn`."""
        more = {one: of - parts.get(one, 0.0) for one, of in later.items()}
        more.update((one, -of) for one, of in parts.items() if one not in later)
        if max(map(abs, more.values())) > LEAST_DIFFERENCE:
            self._pairs.append((more, ratio + sum(of * self._corrections[one] for one, of in more.items())))
            self._num_pairs += 1
            self._num_new += 1

    def _fit(self) -> None:
        """Computes the corrections anew."""
        self._num_new, number = 0, len(self._pairs)
        more_NP, ratios_N = np.zeros((number, len(self._corrections))), np.zeros(number)
        for place, (more, ratio) in enumerate(self._pairs):
            more_NP[place, list(more)] = [*more.values()]
            ratios_N[place] = ratio
        ages_N = KEPT ** np.arange(number - 1, -1, -1)
        corrections_P = np.array(self._corrections)
        for _ in range(ROUNDS):
            off_N = np.abs(ratios_N - more_NP @ corrections_P)
            weighted_NP = more_NP * (ages_N * np.minimum(1, SPREAD / np.maximum(off_N, 1e-9)) / SPREAD**2)[:, None]
            corrections_P = np.linalg.solve(weighted_NP.T @ more_NP + self._prior, weighted_NP.T @ ratios_N)
        self._corrections = corrections_P.tolist()
        self._host.fit()
        self.times = self._corrected()
        self.has_change = self.num_steps - self._told_at >= STEPS_BETWEEN_CHANGES and _differ(self.times, self._told)
        if self._last is not None:  # what was expected has changed, also of the steps whose median is the load
            step, _, ratio = self._last
            parts, expected_s = self._describe(step)
            shift = math.log(step.seconds / expected_s) - ratio
            self._recent = deque((one + shift for one in self._recent), LOAD_STEPS)
            self._last = step, parts, ratio + shift

    def _describe(self, step: ServedStep) -> tuple[dict[int, float], float]:
        """The share that each part has in the seconds of a step, and these seconds, without the load."""
        corrections, extras = self._corrections, self._base.extras
        curve, rows, num_parts = self._shared, self._rows_of_part(step), self._num_parts
        if self._alone and not step.is_shared:
            curve, rows, num_parts = self._alone, step.num_rows, 1
        trees = -(-step.num_sequences // num_parts)
        seconds: dict[int, float] = {}
        if step.is_plain:
            one_s = curve.times.at(rows)
            plain_s = max(one_s + extras.plain(step.is_sampled, trees), one_s / 2)
            seconds[self._plain] = plain_s * math.exp(corrections[self._plain])
        else:
            weights = curve.weights(rows)
            of_curve = curve.times.at(rows) * math.exp(sum(of * corrections[one] for one, of in weights.items()))
            seconds.update((one, of * of_curve) for one, of in weights.items())
            if step.is_sampled:
                sampled_s = extras.sampled_step + extras.sampled_row * rows
                seconds[self._sampled] = sampled_s * math.exp(corrections[self._sampled])
        if trees > 1:
            seconds[self._sequence] = (trees - 1) * extras.sequence * math.exp(corrections[self._sequence])
        if (cached := -(-step.num_cached // num_parts) - CACHED) > 0:
            cached_s = cached / 1000 * extras.thousand_cached
            seconds[self._cached] = cached_s * math.exp(corrections[self._cached])
        total = sum(seconds.values())
        return {number: part / total for number, part in seconds.items()}, total

    def _rows_of_part(self, step: ServedStep) -> int:
        """Rows of the largest part, where all parts share the trees."""
        if self._num_parts == 1:
            return step.num_rows
        if step.num_sequences > 1:
            return -(-step.num_rows // self._num_parts)
        return self._base.part_rows(step.num_rows)

    def _corrected(self) -> StepTimes:
        """The times with all corrections."""
        base, extras = self._base, self._base.extras
        shared = self._corrected_curve(self._shared, [base.part_rows(rows) for rows in base.rows], base)
        alone = base.alone and self._alone and self._corrected_curve(self._alone, base.alone.rows, base.alone)
        factors = [math.exp(one) for one in self._corrections]
        base_one_s, one_s = (base.alone or base).at(1), (alone or shared).at(1)

        def plain(base_s: float) -> float:
            """What a plain step takes beyond one row of the curve. base_s: the same without corrections."""
            return max(base_one_s + base_s, base_one_s / 2) * factors[self._plain] - one_s

        host_step, host_row = self._host.seconds()
        return dataclasses.replace(
            shared,
            alone=alone,
            extras=dataclasses.replace(
                extras,
                host_step=host_step,
                host_row=host_row,
                greedy_plain=plain(extras.greedy_plain),
                sampled_plain=plain(extras.sampled_plain),
                sequence=extras.sequence * factors[self._sequence],
                thousand_cached=extras.thousand_cached * factors[self._cached],
                sampled_step=extras.sampled_step * factors[self._sampled],
                sampled_row=extras.sampled_row * factors[self._sampled],
            ),
        )

    def _corrected_curve(self, curve: _Curve, part_rows: list[int] | tuple[int, ...], base: StepTimes) -> StepTimes:
        """part_rows: rows of the largest part, for each point of `base`."""
        seconds = [
            of_base * math.exp(sum(of * self._corrections[one] for one, of in curve.weights(rows).items()))
            for rows, of_base in zip(part_rows, base.seconds, strict=True)
        ]
        return dataclasses.replace(base, seconds=rising(base.rows, seconds, base.num_parts))

    def take_change(self) -> StepTimes:
        """The times; those that others should be told of now."""
        self.times = self._told = dataclasses.replace(
            self.times, num_steps=self.num_steps, learnt_at=time.time(), load=self.load
        )
        self.has_change, self._told_at = False, self.num_steps
        return self.times

    def next_trial(self) -> Trial | None:
        """The step that should be tried next: a point of a curve that was seldom seen; None if there is none.

        Steps that would keep a new request waiting for long are not tried.
        """
        trials = [(self._plain, Trial(1, not self._alone, True))]
        if alone := self._alone:
            trials += [(alone.first + place, Trial(rows, False, False)) for place, rows in enumerate(alone.times.rows)]
        shared = {rows: self._shared.first + place for place, rows in enumerate(self._shared.times.rows)}
        trials += [(shared[self._base.part_rows(rows)], Trial(rows, True, False)) for rows in self._base.rows]
        for place, trial in sorted(trials, key=lambda one: round(self._num_seen[one[0]])):
            if self._num_seen[place] < OFTEN and self.load * self._seconds_of(trial) < LONGEST_TRIAL_S:
                return trial
        return None

    def _seconds_of(self, trial: Trial) -> float:
        return self._describe(ServedStep(trial.num_rows, trial.is_shared, 1, 0, trial.is_plain, False, 1.0))[1]


class _HostWork:
    """The host's own work between two steps: of each sequence, and what drafts add for a sequence and for a row."""

    def __init__(self, extras: Extras):
        self._seconds = [0.0, extras.host_step, extras.host_row]
        self._seen = np.diag([1e-6, HOST_PRIOR, HOST_PRIOR * USUAL_ROWS**2])
        self._sum = self._seen @ np.array(self._seconds)
        self._last = HOST_LAST * np.diag([1.0, 1.0, USUAL_ROWS**2])
        self._new = deque[tuple[list[int], float]](maxlen=HOST_STEPS)  # not computed with yet
        self._num_steps = 0

    def learn(self, step: ServedStep, load: float) -> None:
        """Learns from the time before a step, without the load. A pause that is longer than the step is none of it."""
        if step.host_s is None or step.host_s > step.seconds:
            return
        amounts = [step.num_sequences, *((0, 0) if step.is_plain else (step.num_sequences, step.num_rows))]
        seconds = step.host_s / load
        expected_s = sum(map(mul, amounts, self._seconds))
        self._num_steps += 1
        if self._num_steps > LOAD_STEPS:  # something else may have held the host up
            seconds = min(seconds, 3 * expected_s)
        self._new.append((amounts, seconds))

    def fit(self) -> None:
        """Computes the seconds anew."""
        for amounts, seconds in self._new:
            self._seen = HOST_KEPT * self._seen + np.outer(amounts, amounts)
            self._sum = HOST_KEPT * self._sum + seconds * np.array(amounts)
        self._new.clear()
        kept = self._last @ np.array(self._seconds)
        self._seconds = np.maximum(0.0, np.linalg.solve(self._seen + self._last, self._sum + kept)).tolist()

    def seconds(self) -> tuple[float, float]:
        """The host's seconds in a step with drafts, beyond those in a plain one, and its seconds for each row."""
        return self._seconds[1], self._seconds[2]


def rising(rows: Sequence[int], seconds: Sequence[float], num_parts: int = 1) -> tuple[float, ...]:
    """Seconds by rows that rise with each row by what a row takes at least."""
    risen = [seconds[0]]
    least_s = LEAST_RISE * seconds[0] / num_parts
    for (before, number), of_number in zip(pairwise(rows), seconds[1:], strict=True):
        risen.append(max(of_number, risen[-1] + (number - before) * least_s))
    return tuple(risen)


def _differ(one: StepTimes, other: StepTimes) -> bool:
    """Whether two times of the same points are so different that decisions may be."""
    pairs = [*zip(one.seconds, other.seconds, strict=True)]
    if one.alone and other.alone:
        pairs += zip(one.alone.seconds, other.alone.seconds, strict=True)
    least_s = LEAST_CHANGE * other.seconds[0]
    extras, others = dataclasses.astuple(one.extras), dataclasses.astuple(other.extras)
    beyond = any(abs(new - old) > least_s for new, old in zip(extras, others, strict=True))
    return beyond or any(abs(new / old - 1) > LEAST_CHANGE for new, old in pairs)
