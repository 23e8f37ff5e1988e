"""Pauses speculation where it does not pay off, and tries it again now and then.

A speculative step has drafts or a window; a plain step has the root alone. Speculation costs more than its rows: drafts
are proposed, candidates are computed, and the sources learn. Where few drafts are accepted, a decoder takes plain steps
for a while.
"""

from __future__ import annotations

from lp.step_cost import StepCost

# How many times a plain step's tokens per modelled second speculation must yield. It is above 1 because the work on the
# host is not modelled.
LEAST_GAIN = 1.1
# Speculative steps before the first decision whether to pause.
TRIAL_STEPS = 8
# Speculative steps before the next decision, after a pause.
PROBE_STEPS = 3
# Number of steps after which a step's result counts about a third as much.
MEMORY_STEPS = 32.0
# Plain steps of the first pause and of the longest one. If speculation still does not pay off after a pause, the next
# pause is twice as long.
SHORTEST_PAUSE, LONGEST_PAUSE = 16, 64


class SharedBackoff:
    """What the requests of one kind share. num_trial_steps: speculative steps with which the next request starts."""

    def __init__(self) -> None:
        self.num_trial_steps = TRIAL_STEPS


class SpeculationBackoff:
    """Decides for one request when to pause speculation. num_left: plain steps left of the present pause."""

    def __init__(self, cost: StepCost, shared: SharedBackoff):
        self.num_left = 0
        self._shared = shared
        self._plain_s = cost.seconds[1]
        # There is nothing to save where every step costs the same.
        self._is_needed = cost.seconds[-1] > self._plain_s
        self._next_pause = SHORTEST_PAUSE
        # Speculative steps left before the next decision.
        self._num_trial_left = shared.num_trial_steps
        self._tokens = self._seconds = 0.0

    def took_plain_step(self) -> None:
        self.num_left -= 1

    def took_speculative_step(self, tokens: int, seconds: float) -> None:
        """Notes the tokens that a speculative step yielded and its modelled seconds; begins a pause if one is due."""
        keep = 1 - 1 / MEMORY_STEPS
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._num_trial_left -= 1
        if self._num_trial_left > 0 or not self._is_needed:
            return
        if self._tokens * self._plain_s >= LEAST_GAIN * self._seconds:
            self._next_pause, self._shared.num_trial_steps = SHORTEST_PAUSE, TRIAL_STEPS
            return
        self.num_left, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
        self._num_trial_left = self._shared.num_trial_steps = PROBE_STEPS
        self._tokens = self._seconds = 0.0

    def state(self) -> list[object]:
        """The whole state, for checksums."""
        shared = self._shared.num_trial_steps
        return [self.num_left, self._next_pause, self._num_trial_left, self._tokens, self._seconds, shared]
