"""The seconds that a step takes, by the rows of its tree. They depend on the model, the machine and the mode.

They are learnt from the steps that are served (lp/runner/step_times/). Decoders choose by them and never by the clock,
as all ranks must choose alike.

    P measured numbers of rows
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import ge
from typing import Any, NamedTuple

import numpy as np

# Depth of the trees that are measured: their rows form chains of this length under the root.
DEPTH = 4
# Tokens in the KV cache in the steps that are measured.
CACHED = 256
# The number of rows of a usual step of decoding.
USUAL_ROWS = 16
# Rows of the steps of which `Extras.thousand_cached` is measured.
CACHED_ROWS = 4
LEAST_COPIED = 16  # fewer tokens are never copied from another replica


@dataclass(frozen=True)
class Extras:
    """Seconds of a step that its curve does not show. The curve is that of greedy steps that return candidates.

    host_step, host_row: planning a tree and learning from its answers, in each step and for each row of the tree.
    sampled_step, sampled_row: choosing tokens at a temperature above 0 rather than greedily, in each step and for each
    row that a rank computes. greedy_plain, sampled_plain: a plain step, which has one row and no candidates, compared
    with the curve's step of one row; below 0 if it is faster. greedy_plain_row, sampled_plain_row: the same for each
    further sequence of a plain step. The noise of a new position is in none of them: a text needs it once for each
    token, however many steps it takes. sequence: each sequence of a step beyond the first, where rows and cached tokens
    are as many. thousand_cached: a thousand more tokens in the KV cache. copy, copied_token: a copy of keys and values
    from one replica to another, and each token of it; 0 where nothing can be copied.
    """

    host_step: float = 0.0
    host_row: float = 0.0
    sampled_step: float = 0.0
    sampled_row: float = 0.0
    greedy_plain: float = 0.0
    sampled_plain: float = 0.0
    greedy_plain_row: float = 0.0
    sampled_plain_row: float = 0.0
    sequence: float = 0.0
    thousand_cached: float = 0.0
    copy: float = 0.0
    copied_token: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for figures that are no seconds."""
        values = dataclasses.asdict(self)
        may_be_less = {name for name in values if "_plain" in name}
        if not all(abs(value) < math.inf and (value >= 0 or name in may_be_less) for name, value in values.items()):
            raise ValueError(
                f"extra seconds {tuple(values.values())} must be finite, and none but those of plain steps below 0"
            )

    def plain(self, is_sampled: bool, num_sequences: int) -> float:
        """Seconds of a plain step of so many sequences, compared with the curve's step of as many rows."""
        first = self.sampled_plain if is_sampled else self.greedy_plain
        return first + (num_sequences - 1) * (self.sampled_plain_row if is_sampled else self.greedy_plain_row)

    def copies(self, num_tokens: int) -> float:
        """Seconds in which so many tokens are copied; infinite where nothing can be."""
        return self.copy + num_tokens * self.copied_token if self.copied_token else math.inf


@dataclass(frozen=True)
class StepTimes:
    """A measured step-time curve.

    rows: [P] ascending numbers of rows. seconds: [P] time of a step with as many rows; it never falls, as each time is
    raised to the longest time of fewer rows. num_parts: number of parts that ranks split the step's tree into. alone:
    the curve of steps whose whole tree one part computes while the others rest; None if there is one part only. extras:
    what the curves do not show. num_steps: served steps that the figures rest on; 0 if all of them were measured.
    learnt_at: when they were measured or learnt from last, in seconds since 1970; 0 if that is not known. load: the
    factor by which steps took longer then; no decision depends on it.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    num_parts: int = 1
    alone: StepTimes | None = None
    extras: Extras = Extras()
    num_steps: int = 0
    learnt_at: float = 0.0
    load: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for figures that are no step times."""
        sizes = len(self.rows), len(self.seconds)
        if sizes[0] != sizes[1] or not sizes[0] or list(self.rows) != sorted(set(self.rows)) or self.rows[0] < 1:
            raise ValueError(
                f"rows {self.rows} must be ascending numbers above 0, one for each of the {sizes[1]} times"
            )
        if self.num_parts < 1:
            raise ValueError(f"num_parts={self.num_parts} must be at least 1")
        if not all(0 < value < math.inf for value in self.seconds):
            raise ValueError(f"seconds {self.seconds} must all be above 0 and finite")
        object.__setattr__(self, "seconds", tuple(accumulate(self.seconds, max)))

    @staticmethod
    def flat() -> StepTimes:
        """A curve on which every step costs the same, so that the tokens per step alone decide."""
        return StepTimes((1,), (1.0,))

    def at(self, num_rows: int) -> float:
        """Seconds of a step of `num_rows` rows, on a straight line between the measured points and beyond the last."""
        above = bisect_left(self.rows, num_rows)
        if len(self.rows) == 1 or above == 0:
            return self.seconds[0]
        above = min(above, len(self.rows) - 1)
        (low, high), (fast, slow) = self.rows[above - 1 : above + 1], self.seconds[above - 1 : above + 1]
        return fast + (slow - fast) * (num_rows - low) / (high - low)

    def by_part(self) -> StepTimes:
        """The same times, by the rows of the largest part instead of the whole tree."""
        largest = {self.part_rows(rows): seconds for rows, seconds in zip(self.rows, self.seconds, strict=True)}
        return StepTimes(tuple(largest), tuple(largest.values()))

    def part_rows(self, num_rows: int) -> int:
        """The rows of the largest part of a measured tree of so many rows."""
        num_chains = -(-(num_rows - 1) // DEPTH)
        return min(num_rows, 1 + DEPTH * -(-num_chains // self.num_parts))

    def for_parts(self, num_parts: int) -> StepTimes:
        """The times for a runner of so many parts, where these were measured with more: ranks may have been lost."""
        if num_parts > 1 or self.alone is None:
            return self
        return dataclasses.replace(
            self.alone, extras=self.extras, num_steps=self.num_steps, learnt_at=self.learnt_at, load=self.load
        )

    def of_sequences(self, num_sequences: int, num_cached: int | None = None) -> float:
        """Seconds that a step of so many sequences takes beyond a step of as many rows of one measured sequence.

        num_cached: tokens in all their KV caches; None is as many for each as were measured.
        """
        more = num_sequences - 1
        cached = more * CACHED if num_cached is None else max(0, num_cached - CACHED)
        return more * self.extras.sequence + cached / 1000 * self.extras.thousand_cached

    @property
    def row_per_thousand(self) -> float:
        """The share of its time by which one more row takes longer for each thousand tokens before it."""
        curve, few, many = self.by_part(), USUAL_ROWS, 4 * USUAL_ROWS
        row_s = (curve.at(many) - curve.at(few)) / (many - few)
        return self.extras.thousand_cached / CACHED_ROWS / row_s if row_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        alone = self.alone and self.alone.to_dict()
        curve = {"rows": list(self.rows), "seconds": list(self.seconds), "num_parts": self.num_parts}
        rest = {"num_steps": self.num_steps, "learnt_at": self.learnt_at, "load": self.load}
        return {**curve, "alone": alone, "extras": dataclasses.asdict(self.extras), **rest}

    @staticmethod
    def from_dict(values: Any) -> StepTimes:
        """The inverse of `to_dict`. Raises ValueError for values that are no step times."""
        try:
            rows, seconds = map(int, values["rows"]), map(float, values["seconds"])
            alone = values.get("alone") and StepTimes.from_dict(values["alone"])
            extras = Extras(**{name: float(value) for name, value in values.get("extras", {}).items()})
            rest = int(values.get("num_steps", 0)), float(values.get("learnt_at", 0.0)), float(values.get("load", 1.0))
            return StepTimes(tuple(rows), tuple(seconds), int(values["num_parts"]), alone, extras, *rest)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not step times: {error}") from error


class CostTables(NamedTuple):
    """What StepCost looks up, as float64 numbers side by side.

    host_row: [1] seconds of the host for each row of a tree. shared, shared_slopes: [M + 1] by the rows of the largest
    part. alone, alone_slopes: [M + 1] by the rows of a tree that one part computes. Slopes: see StepCost.row_s.
    """

    host_row: array[float]
    shared: array[float]
    shared_slopes: array[float]
    alone: array[float]
    alone_slopes: array[float]


class StepCost:
    """Step times as tables for fast lookup.

    Where ranks share a tree, each step may instead be computed by one part alone, whichever is faster. Where several
    sequences share a step, its seconds are divided among them as if their trees were alike.

        M most rows of a tree; B sequences of a step

    most_rows: M. num_parts: number of parts that a shared tree is split into. plain_s: seconds of a plain step: one
    row, no candidates, no drafts looked up. is_flat: whether every step takes the same time.
    least_odds: a draft less likely than this never pays, however many the step has, as a step yields a token for each
    sequence at least, and a row costs the curve's least rise at least.
    """

    def __init__(self, times: StepTimes, most_rows: int, is_sampled: bool = False, load: int = 1):
        """is_sampled: whether tokens are sampled rather than decoded greedily. load: B."""
        self.most_rows, self._is_sampled, self._load = most_rows, is_sampled, load
        # [1] seconds of the host for each row of the tree. [M + 1] seconds by the rows of the largest part, without the
        # host's. [M + 1] seconds by the rows of a tree that one part computes; infinite where ranks never rest.
        self._host_row, self._shared, self._shared_slopes, self._alone, self._alone_slopes = (
            array("d", bytes(8 * size)) for size in (1, *[most_rows + 1] * 4)
        )
        self.update(times)

    def update(self, times: StepTimes) -> None:
        """Takes other times, in place: all who hold this cost or its tables decide by them from now on."""
        extras, most_rows, load, is_sampled = times.extras, self.most_rows, self._load, self._is_sampled
        # If there are fewer parts than sequences, each part computes several whole trees.
        self.num_parts = max(1, times.num_parts // load)
        trees = -(-load // times.num_parts)
        step_s = extras.host_step + is_sampled * extras.sampled_step / load
        row_s = is_sampled * extras.sampled_row * (trees / load)
        shared, alone = times.by_part(), times.alone if load == 1 else None
        more_s = times.of_sequences(trees)
        self._host_row[0] = extras.host_row
        self._shared[:] = array(
            "d",
            ((shared.at(trees * rows) + more_s) / load + step_s + row_s * rows for rows in range(most_rows + 1)),
        )
        self._shared_slopes[:] = array("d", (slope / self.num_parts for slope in _least_slopes(self._shared)))
        self._alone[:] = self._alone_slopes[:] = array("d", [math.inf] * (most_rows + 1))
        if alone is not None:
            row_s += extras.host_row
            self._alone[:] = array("d", (alone.at(rows) + step_s + row_s * rows for rows in range(most_rows + 1)))
            self._alone_slopes[:] = array("d", _least_slopes(self._alone))
        self._copy = extras.copies
        one_row = min((shared.at(trees) + more_s) / load, alone.at(1) if alone else math.inf)
        self.plain_s = max(one_row + extras.plain(is_sampled, trees) / load, one_row / 2)
        self.is_flat = self.step_s(most_rows, 0) <= self.plain_s
        rises = [more - fewer for fewer, more in zip(self._shared[1:], self._shared[2:], strict=False)]
        self.least_odds = (min(rises, default=0.0) / self.num_parts + extras.host_row) / self.step_s(1, 0)
        # Seconds that a part needs for one more row, beyond the rise from one row to two.
        few, many = min(2, most_rows), min(18, most_rows)
        self._row_s = (self._shared[many] - self._shared[few]) / max(1, many - few)
        self._usual_s = self._shared[min(16, most_rows)]
        # [M + 1] seconds of steps whose trees have no depth, which matters only where trees are split.
        self.by_rows = [self.step_s(num_rows, 0) for num_rows in range(most_rows + 1)]

    @property
    def tables(self) -> CostTables:
        return CostTables(self._host_row, self._shared, self._shared_slopes, self._alone, self._alone_slopes)

    def step_s(self, num_rows: int, depth: int) -> float:
        """Seconds of a step by the rows and the depth of its tree."""
        shared_s = self.shared_s(num_rows, depth)
        return shared_s if self.num_parts == 1 else min(shared_s, self._alone[num_rows])

    def shared_s(self, num_rows: int, depth: int) -> float:
        """Seconds of a step whose tree all parts share."""
        return self._shared[self.largest_part(num_rows, depth)] + self._host_row[0] * num_rows

    def alone_s(self, num_rows: int) -> float:
        """Seconds of a step whose tree one part computes; infinite where ranks never rest."""
        return self._alone[num_rows]

    def row_s(self, num_rows: int, depth: int) -> float:
        """A lower bound of what each further row of a tree costs, in seconds, however many are added."""
        return min(self._shared_slopes[self.largest_part(num_rows, depth)], self._alone_slopes[num_rows])

    def rows_within(self, seconds: float) -> int:
        """The most rows of a tree, a chain aside, whose step takes at most so many seconds; at least 1."""
        return max(1, bisect_right(self.by_rows, seconds) - 1)

    def catch_up_s(self, num_tokens: int) -> float:
        """About the seconds by which a shared step is longer if all parts but one lack so many tokens of the sequence.

        The other part takes over rows of the tree, as far as the tokens do not take longer than an ordinary part.
        """
        taken_over = num_tokens * (self.num_parts - 1) / self.num_parts * self._row_s
        computed_s = max(taken_over, self.part_s(1 + num_tokens) - self._usual_s)
        return min(computed_s, self._copy(num_tokens)) if num_tokens >= LEAST_COPIED else computed_s

    def part_s(self, num_rows: int) -> float:
        """About the seconds of a step whose largest part has so many rows, also more of them than a tree may have."""
        last = len(self._shared) - 1
        return self._shared[min(num_rows, last)] + max(0, num_rows - last) * self._row_s

    def largest_part(self, num_rows: int, depth: int) -> int:
        """About the number of rows of the largest part of a tree.

        A path cannot be split, and parts repeat the beginnings of their paths.
        """
        if self.num_parts == 1:
            return num_rows
        repeated = (self.num_parts - 1) * depth // 2
        return min(num_rows, max(depth + 1, -(-(num_rows + repeated) // self.num_parts)))


def _least_slopes(seconds: Sequence[float]) -> Sequence[float]:
    """Finds for each number of rows the least cost of a further row, however many are added; infinite for the last."""
    values = np.asarray(seconds)
    number = np.arange(len(values))
    more = number[None, :] - number[:, None]
    slopes = np.full(more.shape, math.inf)
    np.divide(values[None, :] - values[:, None], more, out=slopes, where=more > 0)
    return slopes.min(axis=1).tolist()


def descending(values: Sequence[float]) -> list[float]:
    """The nearest values that never rise, by least squares: what rises is replaced by its mean (isotonic regression).

    Of odds of drafts that can be taken only in this order, a draft that is likelier than the one before it can only be
    had together with it. Where each row of a run costs the same, taking a part of the run is never the best choice, so
    the means lead to the same choices.
    """
    if all(map(ge, values, islice(values, 1, None))):
        return list(values)
    runs: list[tuple[float, int]] = []  # the mean and the length of each
    for mean in values:
        length = 1
        while runs and runs[-1][0] < mean:
            before, more = runs.pop()
            mean = (before * more + mean * length) / (more + length)
            length += more
        runs.append((mean, length))
    return [mean for mean, length in runs for _ in range(length)]
