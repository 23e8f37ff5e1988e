"""Choosing each row's tokens: by the scores that the warpers leave, plus the noise of the row's position for a sample.

A chooser may leave rows unsettled; `FullVocabulary`, which looks at the whole vocabulary, never does. Where they settle
a row all choose the same token. Knows nothing of trees.

    R rows, V vocabulary, K tokens chosen for each row
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessorList

from lp.sampling.noise import NoiseTable
from lp.sampling.top_k import best_tokens
from lp.verification import NOT_A_TOKEN


class Rows(NamedTuple):
    """scores: [R, V] that no warper has seen. positions: [R] int64 in the sequence, of the tokens to choose.
    greedy: [R] bool, rows without noise.
    """

    scores: Tensor
    positions: np.ndarray
    greedy: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        return Rows(self.scores[torch.from_numpy(rows)], self.positions[rows], self.greedy[rows])

    def parts(self) -> list[Rows]:
        """Parts of so many rows that what is made of one stays in a CPU's cache, or fits a GPU's memory easily."""
        num_rows = max(1, (1 << 20 if self.scores.device.type == "cpu" else 1 << 26) // self.scores.shape[1])
        slices = [slice(start, start + num_rows) for start in range(0, len(self.scores), num_rows)]
        return [Rows(self.scores[some], self.positions[some], self.greedy[some]) for some in slices]


class Choice(NamedTuple):
    """tokens: [R, K] best first, NOT_A_TOKEN in rows that hold a NaN. is_settled: [R] bool, False if the first of them
    may be wrong.
    """

    tokens: Tensor
    is_settled: Tensor


class Chooser(Protocol):
    def __call__(self, rows: Rows) -> Choice: ...


class FullVocabulary:
    """Looks at everything: all of transformers' warpers, the noise of the whole vocabulary."""

    def __init__(self, warpers: LogitsProcessorList, noise: NoiseTable | None, num_tokens: int):
        self.warpers = warpers
        self.noise = noise
        self.num_tokens = num_tokens

    def __call__(self, rows: Rows) -> Choice:
        parts = rows.parts() if self.noise else [rows]
        tokens_RK = torch.cat([self._choose(part) for part in parts])
        return Choice(tokens_RK, torch.ones_like(tokens_RK[:, 0], dtype=torch.bool))

    def _choose(self, rows: Rows) -> Tensor:
        no_context = cast(LongTensor, torch.empty(len(rows.scores), 0, dtype=torch.int64, device=rows.scores.device))
        scores_RV = self.warpers(no_context, cast(FloatTensor, rows.scores))
        if self.noise:
            scores_RV = self.noise.of(rows.positions, rows.greedy).add_(scores_RV)
        best = best_tokens(scores_RV, self.num_tokens)
        return best.tokens.where(best.are_numbers[:, None], NOT_A_TOKEN)
