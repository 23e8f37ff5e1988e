"""What a second model's drafts turned out to be worth in one sequence.

W candidates of a node, B buckets of their priors
"""

from __future__ import annotations

from collections.abc import Sequence

# W and B.
WIDTH, NUM_BUCKETS = 4, 10
# What other sources had proposed where a candidate came: nothing, the same token among others, or other tokens only.
ALONE, AGREED, RIVALLED = range(3)
# A prior counts as so many trials.
PRIOR_TRIALS = 4.0
# The share of nodes that have the target among their candidates, before anything is known.
PRIOR_RATE = 0.7
# Trials after which earlier ones count half, so that what is learnt follows the text.
MOST_TRIALS = 256.0


class Calibration:
    """Counts how often candidates were right, by their place among those of their node, by what other sources had
    proposed there (ALONE, AGREED or RIVALLED), and by their prior.

    Where little is known of a prior, it is believed as far as priors of this place were right. A copy of the model
    names the model's first choice nearly always, whatever probability it gives it.
    """

    def __init__(self) -> None:
        self.hits = [[0.0] * NUM_BUCKETS for _ in range(3 * WIDTH)]
        self.trials = [[0.0] * NUM_BUCKETS for _ in range(3 * WIDTH)]
        # For each place: how many candidates there were, the sum of their priors, and how many were right.
        self.totals = [[0.0] * 3 for _ in range(3 * WIDTH)]
        self.found, self.asked = 0.0, 0.0

    def odds(self, place: int, prior: float, beside: int = ALONE, left: float = 1.0) -> float:
        """The probability that a candidate is right. left: what other sources leave for a token that they do not have;
        before much is known, a candidate beside them is not believed to be likelier.
        """
        bucket, number = _bucket(prior), place + beside * WIDTH
        hits, trials = self.hits[number][bucket], self.trials[number][bucket]
        believed = prior * left if beside == RIVALLED else self._corrected(prior, number, place == 0)
        return (hits + PRIOR_TRIALS * believed) / (trials + PRIOR_TRIALS)

    def _corrected(self, prior: float, number: int, is_first: bool) -> float:
        """The prior, with as many misses as first candidates of such priors had, or hits as others had."""
        trials, expected, right = self.totals[number]
        if is_first:
            return max(0.0, 1.0 - (1.0 - prior) * (trials - right + 1.0) / (trials - expected + 1.0))
        return min(1.0, prior * (right + 1.0) / (expected + 1.0))

    @property
    def rate(self) -> float:
        """The probability that one of a node's candidates is right."""
        return (self.found + PRIOR_TRIALS * PRIOR_RATE) / (self.asked + PRIOR_TRIALS)

    def learn(self, priors: Sequence[float], right: int | None, beside: Sequence[int] = ()) -> None:
        """Learns which of a node's candidates was right; None if none was. beside: of each; none is ALONE for all."""
        places = [place + of_place * WIDTH for place, of_place in enumerate(beside or [ALONE] * len(priors))]
        for place, prior in zip(places, priors, strict=True):
            self.trials[place][_bucket(prior)] += 1
            self.totals[place][0] += 1
            self.totals[place][1] += prior
        self.asked += 1
        if right is not None:
            self.hits[places[right]][_bucket(priors[right])] += 1
            self.totals[places[right]][2] += 1
            self.found += 1
        if self.asked > MOST_TRIALS:
            self.hits, self.trials, self.totals = _halved(self.hits), _halved(self.trials), _halved(self.totals)
            self.found, self.asked = self.found / 2, self.asked / 2

    def state(self) -> tuple[object, ...]:
        """All that is known, for checksums."""
        return self.hits, self.trials, self.totals, self.found, self.asked


def _halved(counts: list[list[float]]) -> list[list[float]]:
    return [[count / 2 for count in of_place] for of_place in counts]


def _bucket(prior: float) -> int:
    return min(NUM_BUCKETS - 1, int(prior * NUM_BUCKETS))
