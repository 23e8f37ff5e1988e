"""Decides whether all ranks of a group share a sequence's next step, or one computes it alone while the others rest.

Ranks that rest lack the tokens of their pause, and must compute them when they share a step again. So sharing begins
anew once it could have saved as much time as that takes. What they come to lack while sharing would have been faster
does not count: hesitating must not become a reason to hesitate.

Steps in a row that sharing slows are shared all the same, so that no rank lacks tokens, until that has cost as much
time as catching up would.
"""

from __future__ import annotations

from lp.step_cost import StepCost


class Resting:
    """The decisions for one sequence.

    is_shared: whether the present step is shared. The first one is, so that every rank has the prompt.
    """

    def __init__(self, cost: StepCost):
        self._cost = cost
        self._is_first = True
        self.is_shared = True
        # Tokens that the resting ranks lack, and the seconds of catching up that no longer count.
        self._num_missing = 0
        self._saved_s = 0.0
        # Seconds by which the present step could have been faster.
        self._behind_s = 0.0
        # Seconds by which steps in a row were slower for being shared.
        self._slower_s = 0.0

    @property
    def catch_up_s(self) -> float:
        """Seconds that count against sharing the next step."""
        if not self._num_missing:
            return 0.0
        return max(0.0, self._cost.catch_up_s(self._num_missing) - self._saved_s)

    def choose(self, num_rows: int, depth: int) -> None:
        """Decides about a step by the rows and the depth of its tree."""
        self._behind_s = self._cost.alone_s(num_rows) - self._cost.shared_s(num_rows, depth)
        self._slower_s = self._slower_s - self._behind_s if self._behind_s < 0 else 0.0
        if self._is_first:
            self.is_shared, self._slower_s = True, 0.0
        elif self._num_missing:
            self.is_shared = self.catch_up_s <= self._behind_s
        else:
            self.is_shared = self._slower_s <= self._cost.catch_up_s(1)

    def choose_among_many(self) -> None:
        """Decides about a step that several sequences share: who rests is decided for all of them together."""
        self.is_shared, self._behind_s = True, 0.0

    def accepted(self, num_tokens: int) -> None:
        """Notes what the present step has yielded."""
        self._is_first = False
        if self.is_shared:
            self._num_missing, self._saved_s = 0, 0.0
            return
        before_s = self._cost.catch_up_s(self._num_missing)
        self._num_missing += num_tokens
        if self._behind_s > 0:
            self._saved_s += self._behind_s + self._cost.catch_up_s(self._num_missing) - before_s
