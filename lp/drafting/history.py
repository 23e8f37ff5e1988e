"""What an engine has learnt from all its requests about drafts: a new request begins with it.

Kept apart by how requests sample, as text drawn at a high temperature is guessed less well. No token of a request is in
it, but for n-grams that requests of one owner have agreed to share.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import astuple, dataclass

from lp.drafting.backoff import Habit
from lp.drafting.contexts import ContextIndex
from lp.drafting.estimates import Estimates
from lp.drafting.pace import Pace
from lp.drafting.sources import SUFFIX_LENGTHS, Kinds
from lp.drafting.window_size import WindowChoice
from lp.methods import Auto
from lp.step_cost import StepTimes

MOST_OWNERS = 64
LARGEST_SHARED = 1 << 18
"""Contexts kept for one owner."""
UNKNOWN_ROWS = 32
"""Rows of a step where nothing is known of what they cost: nearly free on most machines."""


@dataclass(frozen=True)
class Lessons:
    """What requests of one kind have taught."""

    kinds: Kinds
    pace: Pace
    estimates: Estimates
    windows: WindowChoice
    habit: Habit


class Experience:
    """Of one engine. step_times: of its runner, None if they are not known; the same on all ranks."""

    def __init__(self, step_times: StepTimes | None = None):
        self.step_times = step_times
        self._lessons: dict[tuple[object, ...], Lessons] = {}
        self._shared: OrderedDict[str, ContextIndex] = OrderedDict()

    def lessons(self, settings: Auto, temperature: float) -> Lessons:
        """For requests with these settings, sampled in this way."""
        regime = 0 if temperature == 0 else 1 if temperature < 0.9 else 2
        key = (*astuple(settings), regime)
        if key not in self._lessons:
            self._lessons[key] = self._fresh(settings)
        return self._lessons[key]

    def _fresh(self, settings: Auto) -> Lessons:
        kinds, pace = Kinds(settings.candidates), self._pace(settings)
        levels = settings.ngram - 1
        largest = min(settings.max_window, pace.most_rows // 2 // levels) if settings.window_drafts else 0
        columns = sorted({0, largest // 3, 2 * largest // 3, largest})
        return Lessons(kinds, pace, Estimates(kinds.priors()), WindowChoice(columns, levels, pace), Habit())

    def _pace(self, settings: Auto) -> Pace:
        if settings.rows:
            return Pace(StepTimes.flat(), settings.rows)
        if self.step_times is None:
            return Pace(StepTimes.flat(), min(settings.max_rows, UNKNOWN_ROWS))
        return Pace(self.step_times, settings.max_rows)

    def shared(self, owner: str) -> ContextIndex:
        """What one owner's requests share; the owners not seen for longest are forgotten first."""
        index = self._shared.setdefault(owner, ContextIndex(SUFFIX_LENGTHS, LARGEST_SHARED))
        self._shared.move_to_end(owner)
        if len(self._shared) > MOST_OWNERS:
            self._shared.popitem(last=False)
        return index
