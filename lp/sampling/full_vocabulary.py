"""Chooses each row's tokens: those of the highest scores after the warpers, with noise for rows that are sampled.

A chooser may leave a row unsettled, to be settled by another. `FullVocabulary`, which looks at the whole vocabulary,
settles every row. All choosers that settle a row choose the same token for it. Knows nothing of trees.

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
    """The rows for which tokens are to be chosen.

    scores: [R, V] before the warpers. positions: [R] int64, the places in the sequence of the tokens to choose.
    greedy: [R] bool, True for rows that get no noise.
    """

    scores: Tensor
    positions: np.ndarray
    greedy: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Only the rows of these numbers."""
        return Rows(self.scores[torch.from_numpy(rows)], self.positions[rows], self.greedy[rows])

    def parts(self) -> list[Rows]:
        """Splits the rows into parts small enough for a part's scores to stay in a CPU's cache, or to take little of a
        GPU's memory.
        """
        num_rows = max(1, (1 << 20 if self.scores.device.type == "cpu" else 1 << 26) // self.scores.shape[1])
        slices = [slice(start, start + num_rows) for start in range(0, len(self.scores), num_rows)]
        return [Rows(self.scores[some], self.positions[some], self.greedy[some]) for some in slices]


class Choice(NamedTuple):
    """A chooser's answer.

    tokens: [R, K] best first, NOT_A_TOKEN in rows that hold a NaN. is_settled: [R] bool, False if a row's first token
    may be wrong.
    """

    tokens: Tensor
    is_settled: Tensor


class Chooser(Protocol):
    """Chooses tokens for rows."""

    def __call__(self, rows: Rows) -> Choice: ...


class FullVocabulary:
    """Chooses by the whole vocabulary: all of transformers' warpers and the noise of every token.

    num_tokens: K. noise: None for greedy decoding.
    """

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
            scores_RV = self.noise.for_rows(rows.positions, rows.greedy).add_(scores_RV)
        best = best_tokens(scores_RV, self.num_tokens)
        return best.tokens.where(best.are_numbers[:, None], NOT_A_TOKEN)
