"""Changes the scores of the few tokens that a sequence's settings touch, for the rows of many sequences at once.

These are the tokens of the sequence and of the tree, those with a bias, and those that end a text. What is done is what
transformers' processors do, in the order of its `generate`: bias, repetition, presence and frequency (OpenAI's
definition), no repeated n-gram, no bad word, no end before `min_new_tokens`. On a GPU with Triton this is one kernel,
elsewhere a few operations on (row, token) pairs; either takes one copy to the device. A row's scores do not depend on
other rows.

    R rows of a sequence, V vocabulary, U touched tokens, D largest depth of a row, P pairs of a row and a token
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.platform import build as kernels
from lp.platform.hardware import upload
from lp.sampling.settings import Sampling
from lp.tree import PREFIX, TokenTree

# Flags of a token: the sequence has it; it ends a text; it is listed.
SEEN, ENDS, LISTED = 1, 2, 4
NO_PATH = -1
# Words of a row's header in the kernel's array: the row, where its sequence's touched tokens begin, their number, where
# its costs begin, where its path begins, the number of tokens below the root, the number of banned tokens, which lie
# behind them, the number of tokens missing before the text may end, the repetition penalty, the presence penalty.
HEADER = 12
# Touched tokens of one program.
BLOCK = 256


class Touched(NamedTuple):
    """What is done to the scores of one tree's rows.

    tokens: int32 [U], each once. counts: int32 [U], how often the output has them. flags: int32 [U]. biases: float32
    [U]. costs: float32, by how often a path has a token, what is subtracted for that. penalty, presence: the settings.
    paths: int32 [R, D], the tokens below the root on each row's path, then NO_PATH. missing: int32 [R], how many tokens
    must come before the text may end. banned: of each row, the tokens that would repeat an n-gram or complete a bad
    word; None if they may. places: of a token that is touched, its number in `tokens`.
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
        or sampling.bad_words
        or (sampling.min_new_tokens and eos)
    )


class Penalties:
    """Counts the tokens of one sequence, and says what its settings do to the scores of a tree's rows."""

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
        self._bad_words = BadWords(sampling.bad_words) if sampling.bad_words else None
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
        for token in [*self._biased, *self._ends, *(self._bad_words.last if self._bad_words else ())]:
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
        found = self._banned_by_path(tree, tokens)
        if not self._ends:
            return found
        is_early = self._missing(tree, tokens) > 0
        ends = [self._ends if early else [] for early in is_early.tolist()]
        return _joined([ends] if found is None else [ends, found])

    def _banned_by_path(self, tree: TokenTree, tokens: Sequence[int]) -> list[list[int]] | None:
        """For each row, the tokens that would repeat an n-gram or complete a bad word; None if they may."""
        rules = [rule for rule in (self._ngrams, self._bad_words) if rule]
        return _joined([rule.banned(tree, tokens) for rule in rules]) if rules else None

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
            self._banned_by_path(tree, tokens), self._places,
        )  # fmt: skip


def _joined(found: Sequence[list[list[int]]]) -> list[list[int]]:
    """Tokens of each row, of several rules."""
    return found[0] if len(found) == 1 else [[*chain.from_iterable(rows)] for rows in zip(*found, strict=True)]


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


class NGrams:
    """Finds tokens that would repeat an n-gram, as transformers' NoRepeatNGramLogitsProcessor does, without its search.

    The n-grams of a growing sequence are noted once. Those of a tree's paths are few, and are looked at in each step.
    size: n, at least 1.
    """

    def __init__(self, size: int):
        self._num_before = size - 1
        # The tokens that have come after n - 1 others, in the order in which they first did.
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def note(self, tokens: Sequence[int], first: int) -> None:
        """Notes the n-grams that end at this place of the sequence or behind it."""
        before = self._num_before
        for place in range(max(first, before), len(tokens)):
            self._after.setdefault(tuple(tokens[place - before : place]), {})[tokens[place]] = None

    def banned(self, tree: TokenTree, tokens: Sequence[int]) -> list[list[int]]:
        """Returns for each row the tokens that would repeat an n-gram of its path. tokens: the sequence, whose last
        token is the tree's root.
        """
        num_last = min(self._num_before, len(tokens))
        return [self._find_banned(path, num_last) for path in _ends_of_paths(tree, tokens, num_last)]

    def _find_banned(self, path: list[int], num_noted: int) -> list[int]:
        """num_noted: how many of the path's first tokens belong to the sequence."""
        before = self._num_before
        if len(path) < before:
            return []
        key = tuple(path[len(path) - before :])
        known = self._after.get(key, {})
        new = [
            path[place]
            for place in range(max(num_noted, before), len(path))
            if tuple(path[place - before : place]) == key and path[place] not in known
        ]
        return [*known, *dict.fromkeys(new)]


class BadWords:
    """Finds tokens that would complete a bad word, as transformers' NoBadWordsLogitsProcessor does.

    last: tokens that complete one.
    """

    def __init__(self, words: Sequence[Sequence[int]]):
        """words: of at least one token each."""
        self._after: dict[tuple[int, ...], dict[int, None]] = {}
        for word in words:
            self._after.setdefault(tuple(word[:-1]), {})[word[-1]] = None
        self._lengths = sorted({len(before) for before in self._after})
        self.last = [token for tokens in self._after.values() for token in tokens]

    def banned(self, tree: TokenTree, tokens: Sequence[int]) -> list[list[int]]:
        """As `NGrams.banned`."""
        num_last = min(self._lengths[-1], len(tokens))
        return [self._find_banned(path) for path in _ends_of_paths(tree, tokens, num_last)]

    def _find_banned(self, path: list[int]) -> list[int]:
        befores = (tuple(path[len(path) - length :]) for length in self._lengths if length <= len(path))
        return [*dict.fromkeys(token for before in befores for token in self._after.get(before, ()))]


def _ends_of_paths(tree: TokenTree, tokens: Sequence[int], num_last: int) -> list[list[int]]:
    """For each row, so many of the sequence's last tokens, then those below the root on its path."""
    last = list(tokens[len(tokens) - num_last :])
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append(last if parent == PREFIX else [*paths[parent], token])
    return paths


def change(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]], is_fused: bool) -> None:
    """Changes scores in place.

    scores_RV: float32, contiguous. touched: for each sequence, the number of its first row and what is done to its
    rows. is_fused: whether a kernel is to do it.
    """
    if is_fused:
        _start_kernel(scores_RV, touched)
    else:
        _change_pairs(scores_RV, touched)


def _start_kernel(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]]) -> None:
    from lp.sampling import triton_kernels

    words = upload(lay_out(touched), scores_RV.device)
    num_rows = sum(len(one.missing) for _, one in touched)
    most = max(len(one.tokens) for _, one in touched)
    kernels.start(
        triton_kernels.penalise, (num_rows, -(-most // BLOCK)),
        scores_RV, words, words.view(torch.float32), scores_RV.stride(0), HEADER=HEADER, BLOCK=BLOCK,
    )  # fmt: skip


def lay_out(touched: Sequence[tuple[int, Touched]]) -> np.ndarray:
    """int32: the headers of all rows, then for each sequence its tokens as (token, count, flags, bias), its costs, and
    each row's path and banned tokens. Headers have places as numbers of words from the beginning.
    """
    headers = np.zeros((sum(len(one.missing) for _, one in touched), HEADER), np.int32)
    floats = headers.view(np.float32)
    parts, begin, end = [headers.ravel()], 0, headers.size
    for first, one in touched:
        num_rows = len(one.missing)
        own = slice(begin, begin + num_rows)
        tokens = np.stack([one.tokens, one.counts, one.flags, one.biases.view(np.int32)], axis=1).ravel()
        tails, starts, num_banned = _tails(one)
        costs_at = end + tokens.size
        headers[own, 0] = np.arange(first, first + num_rows)
        headers[own, 1], headers[own, 2], headers[own, 3] = end, len(one.tokens), costs_at
        headers[own, 4] = costs_at + one.costs.size + starts
        headers[own, 5] = (one.paths != NO_PATH).sum(axis=1)
        headers[own, 6], headers[own, 7] = num_banned, one.missing
        floats[own, 8], floats[own, 9] = one.penalty, one.presence
        parts += [tokens, one.costs.view(np.int32), tails]
        begin, end = begin + num_rows, costs_at + one.costs.size + tails.size
    return np.concatenate(parts)


def _tails(one: Touched) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's path and banned tokens, one row's behind the other's, where each row's begin, and the numbers of its
    banned tokens.
    """
    if one.banned is None:
        num_rows, width = one.paths.shape
        return one.paths.ravel(), np.arange(num_rows) * width, np.zeros(num_rows, np.int64)
    rows = [[*path[path != NO_PATH].tolist(), *banned] for path, banned in zip(one.paths, one.banned, strict=True)]
    sizes = np.array([len(row) for row in rows])
    tails = np.array([token for row in rows for token in row], np.int32)
    return tails, np.cumsum(sizes) - sizes, np.array([len(banned) for banned in one.banned])


def _change_pairs(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]]) -> None:
    assert scores_RV.is_contiguous(), "the change must reach the scores themselves"
    parts = [_pairs(first, one, scores_RV.shape[1]) for first, one in touched]
    index, floats = (np.concatenate(part, axis=-1) if len(parts) > 1 else part[0] for part in zip(*parts, strict=True))
    words = upload(np.concatenate([index.view(np.int32), floats.ravel().view(np.int32)]), scores_RV.device)
    index_P = words[: 2 * len(index)].view(torch.int64)
    biases, penalties, costs, presences, floors = words[2 * len(index) :].view(torch.float32).view(floats.shape)
    flat = scores_RV.view(-1)
    scores = flat[index_P].add_(biases)
    scores = torch.where(scores < 0, scores * penalties, scores / penalties).sub_(costs).sub_(presences)
    flat[index_P] = torch.where(floors < 0, floors, scores)


def _pairs(first: int, one: Touched, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [P], the numbers of the scores that change, and float32 [5, P]: what is added to them, the penalty for a
    token that is seen, what is subtracted for how often it is, what is subtracted as it is there, and -inf if it is
    banned.
    """
    num_rows, num_tokens = len(one.missing), len(one.tokens)
    index = (np.arange(first, first + num_rows) * vocab_size)[:, None] + one.tokens
    floats = np.empty((5, num_rows, num_tokens), np.float32)
    counts, is_seen = one.counts[None], (one.flags & SEEN != 0)[None]
    if one.paths.size:
        in_path = _in_path(one)
        counts, is_seen = counts + in_path, is_seen | (in_path > 0)
    floats[0] = one.biases
    floats[1] = np.where(is_seen, np.float32(one.penalty), np.float32(1.0))
    floats[2] = one.costs[counts]
    floats[3] = np.where(counts > 0, np.float32(one.presence), np.float32(0.0))
    floats[4] = np.where((one.flags & ENDS != 0) & (one.missing > 0)[:, None], -np.inf, 0.0)
    for row, banned in enumerate(one.banned or ()):
        floats[4, row, one.places[banned]] = -np.inf
    return index.ravel(), floats.reshape(5, -1)


def _in_path(one: Touched) -> np.ndarray:
    """[R, U] how often each row's path below the root has each touched token."""
    rows, depths = np.nonzero(one.paths != NO_PATH)
    num_rows, num_tokens = len(one.missing), len(one.tokens)
    places = rows * num_tokens + one.places[one.paths[rows, depths]]
    return np.bincount(places, minlength=num_rows * num_tokens).reshape(num_rows, num_tokens)
