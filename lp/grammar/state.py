"""Follows the grammar of a text along its sequence and along a tree, and keeps tokens that may not follow from being
chosen.

What may follow is a function of the grammar and the token ids alone, so every rank, and a sequence that is resumed,
reaches the same.

    R rows of a tree, V vocabulary, W words of 32 tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.grammar.matcher import Matcher, Vocabulary
from lp.platform.hardware import upload
from lp.tree import DEAD_END, Answers, TokenTree


class Masks(NamedTuple):
    """What may follow the rows of a tree.

    words: int32 [R, W], a bit for each token of the vocabulary; all of them for rows whose path breaks the grammar, as
    they are never accepted. is_bound: bool [R], which rows keep the grammar. Those without any bit are dead ends.
    """

    words: np.ndarray
    is_bound: np.ndarray

    @staticmethod
    def everything(num_rows: int, vocab_size: int) -> Masks:
        """Every token may follow each row."""
        return Masks(np.full((num_rows, -(-vocab_size // 32)), -1, np.int32), np.ones(num_rows, bool))

    @staticmethod
    def of_tokens(tokens: Sequence[int], vocab_size: int) -> np.ndarray:
        """int32 [W], with the bits of these tokens."""
        bits = np.zeros(-(-vocab_size // 32) * 32, bool)
        bits[list(tokens)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def forbid(self, banned: Sequence[Sequence[int]]) -> None:
        """Takes tokens from what may follow. banned: of each row."""
        for row, tokens in enumerate(banned):
            for token in tokens if self.is_bound[row] else ():
                self.words[row, token >> 5] &= np.int32(~np.uint32(1 << (token & 31)).astype(np.int32))

    def fix(self, answers: Answers) -> None:
        """Corrects the answers of these rows: those of dead ends become DEAD_END, and candidates that may not follow,
        where fewer may than were asked for, become the target.
        """
        targets = answers.targets
        candidates = targets[:, None] if answers.candidates is None else answers.candidates
        may_follow = np.take_along_axis(self.words, np.maximum(candidates, 0).astype(np.int64) >> 5, axis=1)
        may_follow = may_follow >> (np.maximum(candidates, 0) & 31) & 1
        found = np.where(may_follow | (candidates < 0), candidates, candidates[:, :1])
        found[~self.words.any(axis=1)] = DEAD_END
        answers.targets = found[:, 0]
        answers.candidates = None if answers.candidates is None else found


def apply_masks(scores_RV: Tensor, masked: Sequence[tuple[int, Masks]]) -> None:
    """Sets the scores of all tokens that may not follow to -inf, in place. Rows that are dead ends stay as they are.

    masked: for each sequence, the number of its first row and what may follow its rows. Nothing waits for masks: they
    are bits until they reach the device, 6 KB for each row of 50,000 tokens, and the host finds them after it has given
    the device the forward.
    """
    for first, masks in masked:
        words = np.where(masks.words.any(axis=1, keepdims=True), masks.words, np.int32(-1))
        rows = scores_RV[first : first + len(words)]
        if rows.device.type == "cpu":
            bits = np.unpackbits(words.view(np.uint8), axis=1, count=rows.shape[1], bitorder="little")
            rows.masked_fill_(torch.from_numpy(bits) == 0, -torch.inf)
        else:
            shifts = torch.arange(32, dtype=torch.int32, device=rows.device)
            bits_RV = (upload(words, rows.device)[:, :, None] >> shifts & 1).flatten(1)[:, : rows.shape[1]]
            rows.masked_fill_(bits_RV == 0, -torch.inf)


class Forced(NamedTuple):
    """Tokens whose text must follow. sure: tokens that a tokenizer would make of it whatever comes then. likely: those
    that it would make of the rest, if that were all.
    """

    sure: list[int]
    likely: list[int]


class Legal(NamedTuple):
    """What the grammar leaves of a tree's drafts.

    rows: ascending, the root first. ends: those below which no draft is left, each with the tokens that must follow.
    """

    rows: list[int]
    ends: list[tuple[int, list[int]]]


class GrammarState:
    """The state of one text, at the end of its sequence."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, vocab_size: int, prompt_length: int):
        """matcher: of a text that has not begun; it stays as it is."""
        self._fresh, self._matcher = matcher, matcher.deep_copy()
        self._vocabulary, self._vocab_size = vocabulary, vocab_size
        self._begin = self._num_known = prompt_length
        self._last = -1

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped()

    def push(self, token: int) -> bool:
        """Goes on with a token. Returns False if it may not follow; then the state is of no use any more."""
        self._num_known, self._last = self._num_known + 1, token
        return self._matcher.consume_token(token)

    def move_to(self, tokens: Sequence[int]) -> None:
        """Goes to the end of a sequence, mostly from an earlier end of it."""
        known = self._num_known
        if self._matcher.is_error() or known > len(tokens) or (known > self._begin and tokens[known - 1] != self._last):
            self._matcher, known = self._fresh.deep_copy(), self._begin  # it was resumed with fewer tokens
        if len(tokens) > known:
            self._matcher.consume_tokens(list(tokens[known:]))
        self._num_known, self._last = len(tokens), tokens[-1]

    def masks(self, tree: TokenTree, tokens: Sequence[int]) -> Masks:
        """What may follow the rows of a tree. tokens: the sequence, whose last token is the tree's root."""
        self.move_to(tokens)
        words = np.full((len(tree), -(-self._vocab_size // 32)), -1, np.int32)
        is_bound = np.zeros(len(tree), bool)
        address, stride = words.ctypes.data, words.strides[0]
        for row in self._walk(tree):
            self._matcher.unsafe_compute_mask_ptr(address + row * stride, stride)
            if self._matcher.is_error():  # it has reached a limit, perhaps by all that it has seen before
                break
            is_bound[row] = True
        if self._matcher.is_error():
            for row in np.flatnonzero(~is_bound).tolist():
                self._mask_alone(words[row], [*tokens[self._begin :], *tree.tokens[tree.path(row)[1:]].tolist()])
            is_bound |= ~words.any(axis=1)
        return Masks(words, is_bound)

    def _mask_alone(self, words: np.ndarray, text: list[int]) -> None:
        """What may follow a text, by a matcher that has seen nothing else; nothing if it cannot tell."""
        matcher = self._fresh.deep_copy()
        if matcher.try_consume_tokens(text) == len(text):
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            words[:] = 0

    def _walk(self, tree: TokenTree) -> Iterator[int]:
        """Goes to each row that keeps the grammar in turn, and back to the root."""
        for row, is_end in self._visits(tree.tokens.tolist(), tree.children):
            if not is_end:
                yield row

    def _visits(self, tokens: list[int], children: list[list[int]]) -> Iterator[tuple[int, bool]]:
        """Goes to each row that keeps the grammar in turn, and back to the root. Yields the row when it is reached, and
        once more, with True, if no row below it keeps the grammar.
        """
        matcher = self._matcher
        yield 0, False
        path, left, is_end = [0], [iter(children[0])], True
        while left:
            for child in left[-1]:
                if tokens[child] >= 0 and matcher.try_consume_tokens([tokens[child]]):
                    yield child, False
                    path.append(child)
                    left.append(iter(children[child]))
                    is_end = True
                    break
            else:
                if is_end:
                    yield path[-1], True
                is_end = False
                path.pop()
                left.pop()
                if left:
                    matcher.rollback(1)

    def sure(self, most: int) -> list[int]:
        """The tokens that are sure to follow, at most so many."""
        return self._matcher.compute_ff_tokens()[:most] if most > 0 else []

    def forced(self, most: int) -> Forced:
        """What must follow, at most so many tokens of it."""
        if most < 1:
            return Forced([], [])
        sure, text = self._matcher.compute_ff_tokens(), self._matcher.compute_ff_bytes()
        if not text:
            return Forced(sure[:most], [])
        rest = text[len(self._vocabulary.decode_bytes(sure)) :] if sure else text
        likely = self._vocabulary.tokenize_bytes(rest) if rest and len(sure) < most else []
        return Forced(sure[:most], likely[: most - len(sure)])

    def legal(self, after: list[int], tree: TokenTree, num_drafts: int, max_depth: int) -> Legal:
        """What is left of the drafts of a tree that are the rows 1, 2, ... `num_drafts`.

        after: tokens between the end of the sequence and the tree; its root is the last of them. max_depth: the
        greatest depth of tokens that must follow.
        """
        matcher, tokens, depths = self._matcher, tree.tokens.tolist(), tree.depths.tolist()
        children: list[list[int]] = [[] for _ in range(num_drafts + 1)]
        for row, parent in enumerate(tree.parents[1 : num_drafts + 1].tolist(), 1):
            children[parent].append(row)
        rows, ends = list[int](), list[tuple[int, list[int]]]()
        num_after = matcher.try_consume_tokens(after) if after else 0
        assert num_after == len(after), "what is sure to follow must keep the grammar"
        for row, is_end in self._visits(tokens, children):
            if not is_end:
                rows.append(row)
            elif (forced := self.forced(max_depth - depths[row])) != ([], []):
                ends.append((row, forced.sure + forced.likely))
        if after:
            matcher.rollback(len(after))
        return Legal(sorted(rows), sorted(ends))
