"""How likely a candidate is to be right, by where it came from and at which rank: decayed counts of trials and hits.

Only plain arithmetic on counts, in a fixed order: every rank of lookahead parallelism comes to the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.99
"""What a trial still counts when the next one of its kind comes: the last hundred or so matter."""
PRIOR_TRIALS = 3.0


class Estimates:
    """Probabilities by kind: a kind is a source's match and the rank of a candidate in it."""

    def __init__(self, priors: Sequence[float]):
        self.probabilities = list(priors)
        self._hits = [PRIOR_TRIALS * prior for prior in priors]
        self._trials = [PRIOR_TRIALS] * len(priors)

    def learn(self, first: int, candidates: Sequence[int], right: int) -> None:
        """Ranked candidates, of the kinds `first`, `first` + 1, ... , were up for a place that `right` came to."""
        probabilities, all_hits, all_trials = self.probabilities, self._hits, self._trials
        for kind, candidate in enumerate(candidates, first):
            all_trials[kind] = trials = DECAY * all_trials[kind] + 1
            all_hits[kind] = hits = DECAY * all_hits[kind] + (candidate == right)
            probabilities[kind] = hits / trials
