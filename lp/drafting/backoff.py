"""Bounds the time that speculation may lose where it does not pay off: it pauses when it has lost too much.

A speculative step has drafts or a window. A watching step has one row like a plain one, but asks for candidates, so
that the sources learn, and says whether the likeliest draft would have been right. A plain step asks and learns
nothing. All times are modelled ones, in units of a plain step's time: what plain steps need for the same tokens.
"""

from __future__ import annotations

import math
from enum import Enum

from lp.step_cost import StepCost

# The share of the time that may be lost for good.
LARGEST_SHARE_OF_TIME = 0.01
# What a token is worth: a plain step, and what may be lost with it.
GAIN_OF_TOKEN = 1 + LARGEST_SHARE_OF_TIME
# What may be lost at first, before any time has passed. A step may then lose `OVERDRAFT` more than there is.
FUNDS_AT_FIRST, OVERDRAFT = 0.25, 0.5
# The most that earlier gains allow to be lost: an easy text does not pay for a long hard one.
MOST_FUNDS = 3.0
# After a pause of plain steps, speculation begins with this much, so that its sources can learn for a few steps.
FUNDS_AFTER_PAUSE = 0.3
# A pause ends early once drafts that were only watched would have gained this much.
ENOUGH_WATCHED = 1.0


class Effort(Enum):
    """What a step does beside computing the next token."""

    plain = 0
    watch = 1
    speculate = 2


# The same by other names: to look one up in its class takes a call.
PLAIN, WATCH, SPECULATE = Effort.plain, Effort.watch, Effort.speculate


class SpeculationAccount:
    """Says for all requests of one kind what a step may do.

    effort: what a step may do. plain_s: seconds of a plain step. funds: how much may be lost now, in plain steps. What
    steps gain is added, what they lose is subtracted, and every token adds `LARGEST_SHARE_OF_TIME`. Below 0,
    speculation pauses. Steps watch during a pause if that costs at most half of what the tokens add; otherwise they are
    plain. A pause also ends when drafts that were watched would have gained enough.
    """

    def __init__(self, cost: StepCost):
        self.funds = FUNDS_AT_FIRST
        self.plain_s = cost.plain_s
        watching = cost.step_s(1, 0) / cost.plain_s - 1
        self._pause = WATCH if watching <= LARGEST_SHARE_OF_TIME / 2 else PLAIN
        self.effort = SPECULATE
        # What one draft costs, and what watched drafts would have gained lately.
        self._draft = cost.step_s(min(2, cost.most_rows), 1) / cost.plain_s - 1
        self._watched = 0.0
        # There is nothing to lose where every step costs the same.
        self._is_bounded = not cost.is_flat

    @property
    def limit_s(self) -> float:
        """The most seconds that a speculative step may take now."""
        return self._limit_s(self.funds)

    @property
    def loss_s(self) -> float:
        """Seconds of a plain step, which losses are measured in; infinite where there is nothing to lose."""
        return self.plain_s if self._is_bounded else math.inf

    def limit_after(self, tokens: int, seconds: float) -> float | None:
        """What `limit_s` is going to be once a speculative step was noted (see `took_step`), before it is noted.

        None if the step after it may not speculate.
        """
        funds = min(MOST_FUNDS, self.funds + self._gain(tokens, seconds))
        return None if self._is_bounded and funds < 0 else self._limit_s(funds)

    def _limit_s(self, funds: float) -> float:
        return (1 + max(0.0, funds) + OVERDRAFT) * self.loss_s

    def _gain(self, tokens: int, seconds: float) -> float:
        """What a step with drafts adds to the funds, in plain steps."""
        return GAIN_OF_TOKEN * tokens - seconds / self.plain_s

    def took_plain_step(self) -> None:
        self._add(LARGEST_SHARE_OF_TIME)

    def took_step(self, tokens: int, seconds: float) -> None:
        """Notes the tokens that a watching or speculative step yielded, and its modelled seconds."""
        self._add(self._gain(tokens, seconds))

    def watched(self, probability: float, is_right: bool) -> None:
        """Notes whether the likeliest draft of a watching step was right. probability: what was expected of it."""
        if probability <= self._draft:  # it would not have been tried
            return
        self._watched = max(0.0, self._watched + is_right - self._draft)
        if self._watched >= ENOUGH_WATCHED:
            self._watched, self.effort = 0.0, SPECULATE
            self.funds = max(self.funds, FUNDS_AT_FIRST)

    def _add(self, gain: float) -> None:
        self.funds = min(MOST_FUNDS, self.funds + gain)
        enough = FUNDS_AFTER_PAUSE if self.effort is PLAIN else 0.0
        self.effort = self._pause if self._is_bounded and self.funds < enough else SPECULATE

    def state(self) -> list[object]:
        """The whole state, for checksums."""
        return [self.funds, self.effort is not SPECULATE, self._watched]
