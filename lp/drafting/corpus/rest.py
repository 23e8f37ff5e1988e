"""Lets a corpus rest where its drafts do not help, so that it is not searched in vain.

lp/platform/csrc/corpus.h does the same in the library. Only what was accepted counts, not the clock: all ranks must
decide alike.
"""

from __future__ import annotations

# Steps with drafts of a trial. A corpus must be the source of an accepted draft in one of them. One token in so many
# steps is about what the searches cost where a step takes a millisecond; it is much more than that on a CPU.
TRIAL_STEPS = 32
# Steps with drafts of the first rest. Each rest without a helpful trial in between is twice as long as the one before.
FIRST_REST, LONGEST_REST = 32, 256


class CorpusRest:
    """Says for one sequence whether its corpus rests; at first, it is tried.

    is_resting: whether the next step does without it.
    """

    def __init__(self) -> None:
        self.is_resting = False
        self._num_left, self._num_right = TRIAL_STEPS, 0
        self._next_rest = FIRST_REST

    def took_step(self, num_right: int) -> None:
        """Notes a step with drafts. num_right: accepted drafts that the corpus is the source of."""
        self._num_right += num_right
        self._num_left -= 1
        if self._num_left:
            return
        self.is_resting = not (self.is_resting or self._num_right)
        if self.is_resting:
            self._num_left, self._next_rest = self._next_rest, min(LONGEST_REST, 2 * self._next_rest)
        else:
            self._num_left = TRIAL_STEPS
            if self._num_right:
                self._next_rest = FIRST_REST
        self._num_right = 0
