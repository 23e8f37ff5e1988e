"""Best-first beam search (Meister et al., "Best-First Beam Search", TACL 2020, arXiv 2007.03909).

It expands the best open path, whatever its length, and ends when the best open one is finished. Scores must be
monotone: a longer path is never likelier than a part of it. The result is then that of beam search, often with fewer
calls of the model, since paths that are worse than the result are never expanded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from lp.decoding.beams.search import Continuations, Hypothesis, Path
from lp.methods import Beam


class BestFirstSearch:
    """The queue holds candidates of all lengths; those of one length are taken best first, as many as beams.

    As in transformers' beam search, finished candidates count if they are among the best `num_beams` of their length,
    and leave the place of a running one free.
    """

    def __init__(self, settings: Beam, ends: Collection[int], max_new_tokens: int):
        """See BeamSearch. The settings must have a length_penalty of 0, else scores are not monotone."""
        assert not settings.length_penalty
        self._settings = settings
        self._ends = frozenset(ends)
        self._most_tokens = max_new_tokens
        # Minus the score, and the path, of each candidate.
        self._queue: list[tuple[float, Path]] = [(-0.0, ())]
        self._score = 0.0  # of the wanted path
        # Candidates taken from the queue so far, and those of them that run on, by their length.
        self._num_taken: Counter[int] = Counter()
        self._num_running: Counter[int] = Counter()
        self._finished: list[Hypothesis] = []
        self.num_calls = 0
        self.wanted: list[Path] = []
        self._take()

    @property
    def is_done(self) -> bool:
        return not self.wanted

    @property
    def open(self) -> Sequence[Path]:
        return [*self.wanted, *(path for _, path in self._queue)]

    def expand(self, continuations: Sequence[Continuations]) -> None:
        (path,), (found,) = self.wanted, continuations
        self.num_calls += 1
        scores = np.float32(self._score) + found.logprobs
        for token, score in zip(found.tokens.tolist(), scores.tolist(), strict=True):
            heapq.heappush(self._queue, (-score, (*path, token)))
        self._take()

    def _take(self) -> None:
        """Takes candidates until one is to be expanded, or enough are finished."""
        self.wanted = []
        while self._queue and len(self._finished) < self._settings.num_return_sequences:
            minus_score, path = heapq.heappop(self._queue)
            length = len(path)
            rank = self._num_taken[length]
            self._num_taken[length] += 1
            if self._ends_with(path):
                if rank < self._settings.num_beams:
                    self._finished.append(Hypothesis(path, -minus_score))
            elif self._num_running[length] < self._settings.num_beams:
                self._num_running[length] += 1
                self._score, self.wanted = -minus_score, [path]
                self._forget_hopeless(length)
                return

    def _ends_with(self, path: Path) -> bool:
        return bool(path) and (path[-1] in self._ends or len(path) >= self._most_tokens)

    def _forget_hopeless(self, length: int) -> None:
        """Drops candidates of a length of which enough have been taken, so that the open paths have more in common."""
        if self._num_running[length] < self._settings.num_beams or self._num_taken[length] < self._settings.num_beams:
            return
        self._queue = [entry for entry in self._queue if len(entry[1]) != length]
        heapq.heapify(self._queue)

    def result(self) -> list[Hypothesis]:
        return self._finished
