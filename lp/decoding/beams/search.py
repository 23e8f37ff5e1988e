"""The searches for the likeliest texts, one expansion at a time, and the beam search of transformers.

A search says which paths it wants to be expanded; whoever asks the model gives it the likeliest tokens after each. A
path is the generated tokens of a hypothesis that is not finished.

    K continuations of a path, best first
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lp.methods import Beam

Path = tuple[int, ...]


class Hypothesis(NamedTuple):
    """A finished text. score: the sum of its tokens' log-probabilities, divided by length ** length_penalty."""

    tokens: Path
    score: float


class Continuations(NamedTuple):
    """The likeliest tokens after a path. tokens: [K]. logprobs: [K] float32."""

    tokens: np.ndarray
    logprobs: np.ndarray


class Search(Protocol):
    """wanted: the paths to be expanded next. open: paths that may still be a part of the result. is_done: whether the
    result is known. num_calls: how many paths have been expanded: calls of a model that expands one path at a time.
    """

    num_calls: int

    @property
    def wanted(self) -> Sequence[Path]: ...

    @property
    def open(self) -> Sequence[Path]: ...

    @property
    def is_done(self) -> bool: ...

    def expand(self, continuations: Sequence[Continuations]) -> None:
        """Takes the continuations of every wanted path."""
        ...

    def result(self) -> list[Hypothesis]:
        """The best hypotheses, best first, once the search is done."""
        ...


def num_continuations(settings: Beam, num_ends: int) -> int:
    """K: enough to go on with even if all ends are among the best. num_ends: how many tokens end a text."""
    return max(2, 1 + num_ends) * settings.num_beams


@dataclass(frozen=True)
class Candidate:
    """A path and one more token. score: the sum of the log-probabilities. ends: whether the text ends with it."""

    path: Path
    score: float
    ends: bool


class BeamSearch:
    """Beam search with the results of transformers' `generate(num_beams=...)`, which defines what its settings mean.

    All hypotheses that are not finished have the same length. The best `num_beams` of them go on.
    """

    def __init__(self, settings: Beam, ends: Collection[int], max_new_tokens: int):
        """ends: tokens that end a text. max_new_tokens: the length at which it ends in any case."""
        self._settings = settings
        self._ends = frozenset(ends)
        self._most_tokens = max_new_tokens
        self._num_kept = num_continuations(settings, len(self._ends))
        self._running: list[tuple[Path, float]] = [((), 0.0)]
        self._finished: list[Hypothesis] = []
        self._can_improve = True
        self.is_done = False
        self.num_calls = 0

    @property
    def wanted(self) -> list[Path]:
        return [path for path, _ in self._running]

    @property
    def open(self) -> list[Path]:
        return self.wanted

    def expand(self, continuations: Sequence[Continuations]) -> None:
        self.num_calls += len(continuations)
        kept = self._best(continuations)
        length = len(kept[0].path)
        self._finish([one for one in kept[: self._settings.num_beams] if one.ends], length)
        going_on = [(one.path, one.score) for one in kept if not one.ends][: self._settings.num_beams]
        if going_on:
            self._running = going_on
            self._can_improve = self._can_improve and self._may_improve(going_on[0][1], length)
        is_full = self._settings.early_stopping == "true" and self._is_full
        self.is_done = not going_on or is_full or not self._can_improve

    def _best(self, continuations: Sequence[Continuations]) -> list[Candidate]:
        """The best candidates of all paths together."""
        scores = np.concatenate(
            [np.float32(score) + found.logprobs for (_, score), found in zip(self._running, continuations, strict=True)]
        )
        tokens = np.concatenate([found.tokens for found in continuations])
        num_each = len(continuations[0].tokens)
        best = np.argsort(-scores, kind="stable")[: self._num_kept].tolist()
        return [
            self._candidate(self._running[one // num_each][0], int(tokens[one]), float(scores[one])) for one in best
        ]

    def _candidate(self, path: Path, token: int, score: float) -> Candidate:
        return Candidate((*path, token), score, token in self._ends or len(path) + 1 >= self._most_tokens)

    @property
    def _is_full(self) -> bool:
        return len(self._finished) == self._settings.num_beams

    def _finish(self, ended: Sequence[Candidate], length: int) -> None:
        """Adds hypotheses, and drops those that are too many."""
        if not self._can_improve or (self._is_full and self._settings.early_stopping == "true"):
            return
        by_length = length**self._settings.length_penalty
        self._finished += [Hypothesis(one.path, _divided(one.score, by_length)) for one in ended]
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self._settings.num_beams :]

    def _may_improve(self, best: float, length: int) -> bool:
        """Whether the best running hypothesis may become better than the worst finished one."""
        if not self._is_full:
            return True
        penalty = self._settings.length_penalty
        longest = self._most_tokens if self._settings.early_stopping == "never" and penalty > 0 else length
        return _divided(best, longest**penalty) > self._finished[-1].score

    def result(self) -> list[Hypothesis]:
        return self._finished[: self._settings.num_return_sequences]


def _divided(score: float, by: float) -> float:
    """In float32, as transformers computes scores."""
    return float(np.float32(score) / np.float32(by))
