"""Beam search: the hypotheses of one text are branches of one token tree.

A search says which paths it wants to be expanded; the decoder gives it the likeliest tokens after each. A path is the
generated tokens of a hypothesis that is not finished.

    K continuations of a path, best first
"""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from lp.decoder import DecodedTexts, Decoder, RankedTokens
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds
from lp.tree import NOT_A_TOKEN, Accepted, Answers, CountDrafts, TokenTree, TreeBuilder, no_drafts

# Tokens by which the beams of a search differ at most, in most steps: what room is kept for.
LIKELY_DIVERGENCE = 16
# The values with which a setting changes nothing; the only ones that a beam search takes.
OFF_IN_A_SEARCH = {
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram": 0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": None,
    "min_new_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
}
# When a beam search ends; see Beam.
EARLY_STOPPING = ("false", "true", "never")


@dataclass
class Beam(DecodingMethod):
    """Beam search for the likeliest texts, as in transformers' `generate`. The text comes at the end, all at once.

    num_beams: hypotheses that go on after each step. length_penalty: the score of a text is the sum of its tokens'
    log-probabilities, divided by its length to this power. early_stopping: "true" ends when num_beams texts are
    finished, "false" when the best running one is unlikely to become better than those, "never" when it cannot.
    num_return_sequences: the texts that are returned, best first. best_first: expands the best hypothesis of any length
    (arXiv 2007.03909), which needs fewer calls of the model; only with length_penalty=0 and early_stopping=never.
    """

    method: ClassVar[str] = "beam"
    tells_steps: ClassVar[bool] = False
    needs_engine: ClassVar[bool] = True
    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: str = "false"
    num_return_sequences: int = 1
    best_first: bool = False

    def check_values(self) -> None:
        if self.early_stopping not in EARLY_STOPPING:
            raise ValueError(f"decode.early_stopping={self.early_stopping} must be one of {', '.join(EARLY_STOPPING)}")
        if self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"decode.num_return_sequences={self.num_return_sequences} is more than "
                f"decode.num_beams={self.num_beams}"
            )
        if self.best_first and (self.length_penalty or self.early_stopping != "never"):
            raise ValueError(
                "decode.best_first=true needs scores that never rise as a text grows: set decode.length_penalty=0 "
                "and decode.early_stopping=never"
            )

    def check_request(self, request: Request) -> None:
        for name, off in OFF_IN_A_SEARCH.items():
            value = getattr(request.sampling, name)
            if value != off:
                fix = f"leave out {name}" if off in (None, {}, []) else f"set {name}={off}"
                raise ValueError(f"{name}={value} is not for decode=beam, which scores texts by the model alone; {fix}")
        if request.stopping.stop:
            raise ValueError(
                f"stop={request.stopping.stop[0]!r} is not for decode=beam, which stops at tokens alone; "
                "use stop_token_ids"
            )
        if request.grammar is not None:
            raise ValueError("a grammar is not for decode=beam; use another decoding method for structured output")

    @property
    def takes_forced(self) -> bool:
        return False

    def row_bounds(self) -> RowBounds:
        num_rows = self.num_beams * LIKELY_DIVERGENCE
        return RowBounds(num_rows, num_rows)

    def make_decoder(self, request: Request, context: DecodingContext) -> BeamDecoder:
        assert request.stopping.max_new_tokens is not None
        ends = {*request.stopping.stop_token_ids, *(() if request.stopping.ignore_eos else context.eos)}
        return BeamDecoder(self, ends, request.stopping.max_new_tokens)


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
        self._finished += [Hypothesis(one.path, _divide(one.score, by_length)) for one in ended]
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self._settings.num_beams :]

    def _may_improve(self, best: float, length: int) -> bool:
        """Whether the best running hypothesis may become better than the worst finished one."""
        if not self._is_full:
            return True
        penalty = self._settings.length_penalty
        longest = self._most_tokens if self._settings.early_stopping == "never" and penalty > 0 else length
        return _divide(best, longest**penalty) > self._finished[-1].score

    def result(self) -> list[Hypothesis]:
        return self._finished[: self._settings.num_return_sequences]


def _divide(score: float, by: float) -> float:
    """In float32, as transformers computes scores."""
    return float(np.float32(score) / np.float32(by))


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


def shared_beginning(paths: Sequence[Path]) -> Path:
    """The tokens with which all paths begin."""
    first, last = min(paths), max(paths)  # all others lie between these two
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]


class BeamDecoder(Decoder):
    """Every wanted path is a branch of the tree. `commit` accepts tokens that all open paths begin with; they may be
    none.
    """

    ends_at_once: ClassVar[bool] = True

    def __init__(self, settings: Beam, ends: Collection[int], max_new_tokens: int):
        """See BeamSearch."""
        kind = BestFirstSearch if settings.best_first else BeamSearch
        self.search: Search = kind(settings, ends, max_new_tokens)
        self._num_top = num_continuations(settings, len(ends))
        self._num_kept = 0  # tokens that all open paths begin with, and that the sequence has
        self._rows: list[int] = []  # of the last token of each wanted path

    @property
    def num_top(self) -> int:
        return self._num_top

    @property
    def most_rows(self) -> int:
        return 1 + sum(len(path) - self._num_kept for path in self.search.wanted)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        rows: dict[tuple[int, ...], int] = {(): 0}
        self._rows = []
        for path in self.search.wanted:
            rest = path[self._num_kept :]
            for end in range(1, len(rest) + 1):
                if rest[:end] not in rows:
                    rows[rest[:end]] = builder.add(rest[end - 1], rows[rest[: end - 1]])
            self._rows.append(rows[rest])
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        assert answers.top_tokens is not None and answers.top_logprobs is not None
        if (answers.targets[self._rows] == NOT_A_TOKEN).any():
            return Accepted([NOT_A_TOKEN], [0], []), no_drafts
        self.search.expand([Continuations(answers.top_tokens[row], answers.top_logprobs[row]) for row in self._rows])
        shared = () if self.search.is_done else shared_beginning(self.search.open)
        more = list(shared[self._num_kept :])
        self._num_kept += len(more)
        return Accepted(more, [0] * len(more), []), no_drafts

    def result(self) -> DecodedTexts | None:
        if not self.search.is_done:
            return None
        return DecodedTexts([RankedTokens(*one) for one in self.search.result()], self.search.num_calls)

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        raise AssertionError("a beam search never learns from tokens that it has not planned")

    def fingerprint(self) -> int:
        return zlib.crc32(repr((self._num_kept, self.search.open, self.search.num_calls)).encode()) >> 1
