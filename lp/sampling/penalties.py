"""What one sequence's settings do to the scores of the few tokens that they touch.

These are the tokens of the sequence and of the tree, those with a bias, and those that end a text. What is done is what
transformers' processors do, in the order of its `generate`: bias, repetition, presence and frequency (OpenAI's
definition), no repeated n-gram, no end before `min_new_tokens`. lp/sampling/changes.py does it, for the rows of many
sequences at once.

    R rows, V vocabulary, U touched tokens, D largest depth of a row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lp.sampling.ngrams import NGrams
from lp.sampling.settings import Sampling
from lp.tree import TokenTree

# Flags of a token: the sequence has it; it ends a text; it is listed.
SEEN, ENDS, LISTED = 1, 2, 4
NO_PATH = -1


class Touched(NamedTuple):
    """What is done to the scores of one tree's rows.

    tokens: int32 [U], each once. counts: int32 [U], how often the output has them. flags: int32 [U]. biases: float32
    [U]. costs: float32, by how often a path has a token, what is subtracted for that. penalty, presence: the settings.
    paths: int32 [R, D], the tokens below the root on each row's path, then NO_PATH. missing: int32 [R], how many tokens
    must come before the text may end. banned: of each row, the tokens that would repeat an n-gram; None if they may.
    places: of a token that is touched, its number in `tokens`.
    """

    tokens: np.ndarray
    counts: np.ndarray
    flags: np.ndarray
    biases: np.ndarray
    costs: np.ndarray
    penalty: float
    presence: float
    paths: np.ndarray
    missing: np.ndarray
    banned: list[list[int]] | None
    places: np.ndarray


def touches(sampling: Sampling, eos: Sequence[int]) -> bool:
    """Whether these settings change scores by a row's path."""
    return bool(
        sampling.logit_bias
        or (sampling.repetition_penalty or 1.0) != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.no_repeat_ngram
        or (sampling.min_new_tokens and eos)
    )


class Penalties:
    """What is known of one sequence."""

    def __init__(self, sampling: Sampling, prompt_length: int, eos: Sequence[int], vocab_size: int):
        self._prompt_length = prompt_length
        self._penalty = float(sampling.repetition_penalty or 1.0)
        self._presence = float(sampling.presence_penalty or 0.0)
        self._frequency = np.float32(sampling.frequency_penalty or 0.0)
        self._ngram = sampling.no_repeat_ngram or 0
        self._least = sampling.min_new_tokens or 0
        self._ends = list(eos) if self._least else []
        self._biases = np.zeros(vocab_size, np.float32)
        for token, bias in sampling.logit_bias.items():
            self._biases[token] = bias
        self._biased = list(sampling.logit_bias)
        self._begin()

    def _begin(self) -> None:
        """Forgets the sequence."""
        vocab_size = len(self._biases)
        self._num_known, self._last = 0, -1
        self._counts, self._flags = np.zeros(vocab_size, np.int32), np.zeros(vocab_size, np.int32)
        self._flags[self._ends] = ENDS
        self._places = np.zeros(vocab_size, np.int32)
        self._listed = np.empty(16, np.int32)
        self._num_listed = 0
        self._ngrams = NGrams(self._ngram) if self._ngram else None
        for token in [*self._biased, *self._ends]:
            self._list(token)

    def _list(self, token: int) -> None:
        if self._flags[token] & LISTED:
            return
        if self._num_listed == len(self._listed):
            self._listed = np.concatenate([self._listed, self._listed])
        self._listed[self._num_listed] = token
        self._places[token] = self._num_listed
        self._num_listed += 1
        self._flags[token] |= LISTED

    def _learn(self, tokens: Sequence[int]) -> None:
        """Counts the tokens that have come to the sequence."""
        known = self._num_known
        if known > len(tokens) or (known and tokens[known - 1] != self._last):
            self._begin()  # it was resumed with fewer tokens
        for place in range(self._num_known, len(tokens)):
            token = tokens[place]
            self._list(token)
            self._flags[token] |= SEEN
            self._counts[token] += place >= self._prompt_length
        if self._ngrams:
            self._ngrams.note(tokens, self._num_known)
        self._num_known, self._last = len(tokens), tokens[-1]

    def banned(self, tree: TokenTree, tokens: Sequence[int]) -> list[list[int]] | None:
        """Returns the tokens that may not follow each row; None if all may. The others: see `touch`."""
        self._learn(tokens)
        repeated = self._ngrams.banned(tree, tokens) if self._ngrams else None
        if not self._ends:
            return repeated
        is_early = self._missing(tree, tokens) > 0
        ends = [self._ends if early else [] for early in is_early.tolist()]
        return ends if repeated is None else [[*one, *other] for one, other in zip(ends, repeated, strict=True)]

    def _missing(self, tree: TokenTree, tokens: Sequence[int]) -> np.ndarray:
        """[R] how many tokens must come after each row before the text may end."""
        return self._least - (len(tokens) + tree.depths - self._prompt_length)

    def touch(self, tree: TokenTree, tokens: Sequence[int]) -> Touched:
        """What is done to the scores of a tree's rows. tokens: the sequence, whose last token is the tree's root."""
        self._learn(tokens)
        touched = self._listed[: self._num_listed]
        if len(tree) > 1:
            below = np.unique(tree.tokens[1:]).astype(np.int32)
            new = below[self._flags[below] & LISTED == 0]
            self._places[new] = np.arange(len(touched), len(touched) + len(new))
            touched = np.concatenate([touched, new])
        counts = self._counts[touched]
        most = int(counts.max()) + int(tree.depths.max())
        return Touched(
            touched, counts, self._flags[touched], self._biases[touched],
            self._frequency * np.arange(most + 1).astype(np.float32), self._penalty, self._presence,
            _paths(tree), self._missing(tree, tokens).astype(np.int32),
            self._ngrams.banned(tree, tokens) if self._ngrams else None, self._places,
        )  # fmt: skip


def _paths(tree: TokenTree) -> np.ndarray:
    """int32 [R, D]: the tokens below the root on each row's path, then NO_PATH."""
    depths = tree.depths
    paths = np.full((len(tree), int(depths.max())), NO_PATH, np.int32)
    if len(tree) > 1:
        rows, seen = np.nonzero(tree.visibility)
        is_below = depths[seen] > 0
        rows, seen = rows[is_below], seen[is_below]
        paths[rows, depths[seen] - 1] = tree.tokens[seen]
    return paths
