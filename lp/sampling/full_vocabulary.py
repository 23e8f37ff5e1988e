"""Chooses each row's tokens by the whole vocabulary: those of the highest scores after the warpers, with noise for rows
that are drawn. Knows nothing of trees.

    R rows, V vocabulary, K tokens chosen for each row
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lp.sampling.noise import noise_of_rows
from lp.sampling.rows import Rows
from lp.sampling.top_k import best_tokens
from lp.sampling.warping import warp
from lp.tree import NOT_A_TOKEN


@dataclass(frozen=True)
class FullVocabulary:
    """The Chooser that settles every row. All choosers that settle a row choose the same first token for it.

    num_tokens: K. is_greedy: whether it takes rows without warpers and noise alone; it takes all others together.
    is_truncated: whether rows have top-k, top-p or min-p. No other chooser equal to this one takes rows for which more
    would be computed.
    """

    num_tokens: int
    is_greedy: bool
    is_truncated: bool = False

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        if self.is_greedy:
            return self._best(rows.scores)
        parts = [self._best(_noisy(part)) for part in rows.parts()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _best(self, scores_RV: Tensor) -> Tensor:
        best = best_tokens(scores_RV, self.num_tokens)
        tokens_RK = best.tokens.where(best.are_numbers[:, None], NOT_A_TOKEN)
        return torch.cat([tokens_RK.new_ones(len(tokens_RK), 1), tokens_RK], dim=1)


def _noisy(rows: Rows) -> Tensor:
    scores_RV = warp(rows)
    if not rows.any("is_drawn"):
        return scores_RV
    return noise_of_rows(rows.noise, rows.positions, rows.setting("is_drawn")).add_(scores_RV)
