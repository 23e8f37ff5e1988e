"""Plain steps for as long as looking ahead does not pay, with another look now and then.

A step that looks ahead costs more than its rows: drafts are proposed, candidates asked for, all of it learnt from.
Where drafts come to little, a decoder rests from that for a while.
"""

from __future__ import annotations

from lp.step_cost import StepCost

PAYS = 1.1
"""Times a plain step's tokens per modelled second: what looking ahead must yield, as its host work is not modelled."""
TRIAL, GLANCE = 8, 3
"""Steps that look ahead before it is judged whether that pays: at first, and after a rest."""
MEMORY = 32.0
"""Steps after which what one has yielded counts a third."""
SHORTEST, LONGEST = 16, 64
"""Steps of a rest. One that turns out to have been no mistake is followed by one twice as long."""


class SharedBackoff:
    """What the last judgement of any request was. num_looks: steps that the next request looks ahead at first."""

    def __init__(self) -> None:
        self.num_looks = TRIAL


class SpeculationBackoff:
    """Of one request. num_left: plain steps to come."""

    def __init__(self, cost: StepCost, shared: SharedBackoff):
        self.num_left = 0
        self._shared = shared
        self._plain_s = cost.seconds[1]
        self._is_needed = cost.seconds[-1] > self._plain_s
        """Not where every step costs the same."""
        self._length = SHORTEST
        self._num_looks = shared.num_looks
        """That are due before the next judgement."""
        self._tokens = self._seconds = 0.0

    def took_plain_step(self) -> None:
        self.num_left -= 1

    def looked_ahead(self, tokens: int, seconds: float) -> None:
        """What such a step yielded, and its modelled time."""
        keep = 1 - 1 / MEMORY
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._num_looks -= 1
        if self._num_looks > 0 or not self._is_needed:
            return
        if self._tokens * self._plain_s >= PAYS * self._seconds:
            self._length, self._shared.num_looks = SHORTEST, TRIAL
            return
        self.num_left, self._length = self._length, min(2 * self._length, LONGEST)
        self._num_looks = self._shared.num_looks = GLANCE
        self._tokens = self._seconds = 0.0

    def state(self) -> list[object]:
        """All there is, for checksums."""
        return [self.num_left, self._length, self._num_looks, self._tokens, self._seconds, self._shared.num_looks]
