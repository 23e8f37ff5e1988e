"""Samples from the few tokens that top-k, top-p and min-p leave.

These are found among a row's best tokens, without sorting the whole vocabulary. Knows nothing of trees.

    R rows, V vocabulary, N best tokens of each row, K tokens chosen
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lp.sampling.noise import gumbel_of
from lp.sampling.rows import OnDevice, Rows
from lp.sampling.top_k import top_tokens
from lp.sampling.warping import keep_min_p, keep_top_k
from lp.tree import NOT_A_TOKEN

# If a sum of probabilities is nearer than this to top-p, rounding decides which of the two is greater.
ROUNDING = 1e-5
# Subtracted from the scores of tokens that may not be drawn: they come behind all others, in order of their scores.
FAR = 1e4


class Truncated(NamedTuple):
    """The N best tokens of each row after the warpers.

    scores: [R, N], -inf for tokens that the warpers drop. is_doubtful: [R, N] bool, True for tokens that the warpers
    may drop or keep. is_all: [R, 1] bool, True if the warpers drop every token that is not among the N best.
    """

    scores: Tensor
    is_doubtful: Tensor
    is_all: Tensor


@dataclass(frozen=True)
class Shortlist:
    """The Chooser that chooses the same tokens as `FullVocabulary`, for rows where the N best tokens suffice for that.

    They suffice if the warpers drop one of them, as they then drop every token that is worse.

    num_best: N. num_tokens: K. is_of_all: whether top-p is a share of the whole vocabulary's probability, as it is for
    rows without top-k; the two kinds of rows have choosers of their own.
    """

    num_best: int
    num_tokens: int
    is_of_all: bool

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        how = rows.on_device()
        tokens_RN, scores_RN, beyond = top_tokens(rows.scores, self.num_best)
        scores_RN = scores_RN / how.temperature
        is_known_RN = scores_RN > beyond / how.temperature
        left = self._truncate(rows, how, tokens_RN, scores_RN, is_known_RN)
        noise_RN = gumbel_of(how.keys, tokens_RN).masked_fill_(~how.is_drawn, 0)
        order_RN = torch.where(left.scores.isneginf(), scores_RN - FAR, scores_RN + noise_RN)
        best_RK = order_RN.sort(dim=1, descending=True, stable=True).indices[:, : self.num_tokens]
        are_numbers_R1 = ~scores_RN.isnan().any(dim=1, keepdim=True)
        tokens_RK = tokens_RN.gather(1, best_RK).where(are_numbers_R1, NOT_A_TOKEN)
        is_settled_R1 = left.is_all & ~left.is_doubtful.gather(1, best_RK[:, :1]) | ~are_numbers_R1
        return torch.cat([is_settled_R1, tokens_RK], dim=1)

    def _truncate(
        self, rows: Rows, how: OnDevice, tokens_RN: Tensor, scores_RN: Tensor, is_known_RN: Tensor
    ) -> Truncated:
        """is_known_RN: True for tokens better than every token outside the list; the others may have equals there."""
        left_RN = scores_RN.masked_fill(~is_known_RN, -torch.inf)
        is_all_R1 = torch.ones_like(is_known_RN[:, :1])
        is_doubtful_RN = torch.zeros_like(is_known_RN)
        if rows.any("top_k"):
            left_RN = keep_top_k(left_RN, how, int(rows.setting("top_k").max()))
            # The shares below are right only if the list holds all tokens that top-k keeps.
            is_all_R1 = (is_known_RN & left_RN.isneginf()).any(dim=1, keepdim=True) | (how.top_k == 0)
        if rows.any("top_p"):
            shares_RN = self._shares(rows, tokens_RN) if self.is_of_all else left_RN.softmax(dim=1)
            left_RN, is_doubtful_RN = _apply_top_p(left_RN, shares_RN, how.top_p)
        if rows.any("min_p"):
            left_RN = keep_min_p(left_RN, how)
        is_all_R1 = is_all_R1 & (is_known_RN & left_RN.isneginf()).any(dim=1, keepdim=True)
        return Truncated(left_RN, is_doubtful_RN, is_all_R1)

    def _shares(self, rows: Rows, tokens_RN: Tensor) -> Tensor:
        """[R, N] the tokens' probabilities in the distribution over the whole vocabulary."""
        parts = rows.parts()
        tokens = tokens_RN.split([len(part.scores) for part in parts])
        shares = [
            (part.scores / part.on_device().temperature).softmax(dim=1).gather(1, some)
            for part, some in zip(parts, tokens, strict=True)
        ]
        return torch.cat(shares)


def _apply_top_p(scores_RN: Tensor, shares_RN: Tensor, top_p_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Drops a token if the shares of better ones add up to top-p, as `warp` does.

    Returns the scores, and [R, N] bool, True for tokens that are dropped or kept by rounding alone or by the order in
    which a sort leaves equal scores. The scores of these are kept.
    """
    is_off_R1 = top_p_R1 >= 1
    better_RN = _sums_of_better(scores_RN, shares_RN)
    is_kept_RN = (better_RN < top_p_R1) | is_off_R1
    worst_kept = scores_RN.masked_fill(~is_kept_RN, torch.inf).amin(dim=1, keepdim=True)
    best_dropped = scores_RN.masked_fill(is_kept_RN, -torch.inf).amax(dim=1, keepdim=True)
    is_near_RN = (better_RN - top_p_R1).abs() < ROUNDING
    is_near_RN |= (scores_RN == worst_kept) & (worst_kept == best_dropped)
    lowest = scores_RN.masked_fill(~is_near_RN, torch.inf).amin(dim=1, keepdim=True)
    highest = scores_RN.masked_fill(~is_near_RN, -torch.inf).amax(dim=1, keepdim=True)
    is_doubtful_RN = (scores_RN >= lowest) & (scores_RN <= highest) & ~is_off_R1
    return scores_RN.masked_fill(~is_kept_RN & ~is_doubtful_RN, -torch.inf), is_doubtful_RN


def _sums_of_better(scores_RN: Tensor, shares_RN: Tensor) -> Tensor:
    """[R, N] float64: for each token, the sum of the shares of better tokens in the row."""
    upwards = scores_RN.argsort(dim=1)
    shares = shares_RN.gather(1, upwards).double()
    sums = shares.flip(1).cumsum(dim=1).flip(1) - shares
    return torch.empty_like(sums).scatter_(1, upwards, sums)
