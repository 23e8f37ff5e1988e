"""The processors that look at a row's path as one Triton kernel over the tokens that they touch.

These are the tokens of the sequence and of the tree, those with a bias, and those that end a text. The kernel changes
scores as the processors of lp/sampling/processors.py do, in their order: bias, repetition, presence and frequency, no
end before `min_new_tokens`. Which n-grams may not repeat is left to transformers' processor.

    R rows, V vocabulary, U touched tokens
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp import gpu_kernels
from lp.hardware import upload
from lp.sampling.settings import Sampling
from lp.tree import TokenTree

# Numbers to whose multiples every array is filled up, so that Triton compiles one kernel for all of their lengths.
ALIGNMENT = 16
# Touched tokens of one program.
BLOCK = 256
# Flags of a token: the sequence has it; it ends a text; it is listed.
SEEN, ENDS, LISTED = 1, 2, 4


def can_penalise(sampling: Sampling) -> bool:
    """Whether the kernel does all that these settings ask of a row's path."""
    return not sampling.no_repeat_ngram


class Penalties:
    """Changes the scores of one sequence's trees."""

    def __init__(self, sampling: Sampling, prompt_length: int, eos: Sequence[int], vocab_size: int):
        self._prompt_length = prompt_length
        self._penalty = float(sampling.repetition_penalty or 1.0)
        self._presence = float(sampling.presence_penalty or 0.0)
        self._frequency = np.float32(sampling.frequency_penalty or 0.0)
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
        self._listed = np.empty(ALIGNMENT, np.int32)
        self._num_listed = 0
        for token in [*self._biased, *self._ends]:
            self._list(token)

    def _list(self, token: int) -> None:
        if self._flags[token] & LISTED:
            return
        if self._num_listed == len(self._listed):
            self._listed = np.concatenate([self._listed, self._listed])
        self._listed[self._num_listed] = token
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
        self._num_known, self._last = len(tokens), tokens[-1]

    @torch.inference_mode()
    def __call__(self, scores_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Changes the scores of a tree's rows in place. tokens: the sequence, whose last token is the tree's root."""
        from lp.sampling import triton_kernels

        self._learn(tokens)
        listed = self._listed[: self._num_listed]
        below = np.unique(tree.tokens[1:]).astype(np.int32)
        touched = _filled(np.concatenate([listed, below[self._flags[below] & LISTED == 0]]), -1)
        counts = self._counts[touched]
        costs = self._frequency * np.arange(counts.max() + tree.depths.max() + 1).astype(np.float32)
        parts = [
            touched, counts, self._flags[touched], self._biases[touched].view(np.int32),
            _filled(costs.astype(np.float32)).view(np.int32), self._tails(tree, len(tokens)).ravel(),
        ]  # fmt: skip
        on_device = upload(np.concatenate(parts), scores_RV.device).split([part.size for part in parts])
        words = [part.view(torch.float32) if place in (3, 4) else part for place, part in enumerate(on_device)]
        gpu_kernels.start(
            triton_kernels.penalise, (len(tree), -(-len(touched) // BLOCK)),
            scores_RV, *words, scores_RV.stride(0), len(touched), parts[-1].size // len(tree),
            self._penalty, self._presence, BLOCK=BLOCK,
        )  # fmt: skip

    def _tails(self, tree: TokenTree, length: int) -> np.ndarray:
        """int32 [R, 2 + D, filled up] of each row: how many tokens are missing before a text may end, the number of
        tokens on its path below the root, and these tokens.
        """
        depths = tree.depths
        width = -(-(2 + int(depths.max())) // ALIGNMENT) * ALIGNMENT
        tails = np.full((len(tree), width), -1, np.int32)
        tails[:, 0] = self._least - (length + depths - self._prompt_length)
        tails[:, 1] = depths
        rows, seen = np.nonzero(tree.visibility)
        is_below = depths[seen] > 0
        rows, seen = rows[is_below], seen[is_below]
        tails[rows, 1 + depths[seen]] = tree.tokens[seen]
        return tails


def _filled(values: np.ndarray, filling: int = 0) -> np.ndarray:
    return np.pad(values, (0, -len(values) % ALIGNMENT), constant_values=filling)
