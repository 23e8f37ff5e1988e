"""What an engine has learnt about drafts from all its requests. New requests start from it.

It is kept apart by settings and temperature, as text sampled at a high temperature is harder to guess. It contains no
tokens of requests, except the n-grams that requests of one owner share if their settings say so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from lp.drafting.backoff import SharedBackoff
from lp.drafting.contexts import ContextIndex
from lp.drafting.shared import make_shared_index
from lp.drafting.sources import Kinds
from lp.drafting.window_size import WindowChoice
from lp.methods import Auto
from lp.step_cost import StepCost, StepTimes

# Most owners whose shared n-grams are kept.
MOST_OWNERS = 64
# Most rows of a step if step times are not known: so many are nearly free on most machines.
UNKNOWN_ROWS = 32
# Each trial of a kind multiplies the weight of all earlier ones by this, so that about the last hundred count.
DECAY = 0.99
# The number of trials that a kind's prior probability counts as.
PRIOR_TRIALS = 3.0


class Estimates:
    """The probability that a candidate is right, for each kind of candidate (see DraftSource)."""

    def __init__(self, priors: Sequence[float]):
        self.probabilities = list(priors)
        self._hits = [PRIOR_TRIALS * prior for prior in priors]
        self._trials = [PRIOR_TRIALS] * len(priors)

    def learn(self, first: int, candidates: Sequence[int], right: int) -> None:
        """Counts candidates of the kinds `first`, `first` + 1, ... that were proposed where `right` followed."""
        probabilities, all_hits, all_trials = self.probabilities, self._hits, self._trials
        for kind, candidate in enumerate(candidates, first):
            all_trials[kind] = trials = DECAY * all_trials[kind] + 1
            all_hits[kind] = hits = DECAY * all_hits[kind] + (candidate == right)
            probabilities[kind] = hits / trials


@dataclass(frozen=True)
class DraftProfile:
    """What was learnt from requests with the same settings and a similar temperature."""

    kinds: Kinds
    cost: StepCost
    estimates: Estimates
    windows: WindowChoice
    backoff: SharedBackoff


class DraftHistory:
    """The draft profiles and shared n-grams of one engine.

    step_times: its runner's, the same on all ranks; None if they are not known.
    """

    def __init__(self, step_times: StepTimes | None = None):
        self.step_times = step_times
        self._profiles: dict[tuple[object, ...], DraftProfile] = {}
        self._shared: OrderedDict[str, ContextIndex] = OrderedDict()

    def profile(self, settings: Auto, temperature: float) -> DraftProfile:
        """The profile of requests with these settings and about this temperature."""
        regime = 0 if temperature == 0 else 1 if temperature < 0.9 else 2
        key = (*astuple(settings), regime)
        if key not in self._profiles:
            self._profiles[key] = self._fresh(settings)
        return self._profiles[key]

    def _fresh(self, settings: Auto) -> DraftProfile:
        kinds, cost = Kinds(settings), self._cost(settings)
        levels = settings.ngram - 1
        largest = min(settings.max_window, cost.most_rows // 2 // levels) if settings.window_drafts else 0
        columns = sorted({0, largest // 3, 2 * largest // 3, largest})
        return DraftProfile(kinds, cost, Estimates(kinds.priors), WindowChoice(columns, levels, cost), SharedBackoff())

    def _cost(self, settings: Auto) -> StepCost:
        if settings.rows:
            return StepCost(StepTimes.flat(), settings.rows)
        if self.step_times is None:
            return StepCost(StepTimes.flat(), min(settings.max_rows, UNKNOWN_ROWS))
        return StepCost(self.step_times, settings.max_rows)

    def shared(self, owner: str) -> ContextIndex:
        """The n-grams that one owner's requests share. The owners not seen for longest are forgotten first."""
        index = self._shared.setdefault(owner, make_shared_index())
        self._shared.move_to_end(owner)
        if len(self._shared) > MOST_OWNERS:
            self._shared.popitem(last=False)
        return index
