"""Samples from the few tokens that top-k, top-p and min-p leave.

These are found among a row's best tokens, without sorting the whole vocabulary. Knows nothing of trees.

    R rows, V vocabulary, N best tokens of each row, K tokens chosen
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper

from lp.hardware import upload
from lp.sampling.full_vocabulary import Choice, Rows
from lp.sampling.noise import gumbel_at
from lp.sampling.top_k import top_tokens
from lp.verification import NOT_A_TOKEN

# If a sum of probabilities is nearer than this to top-p, rounding decides which of the two is greater.
ROUNDING = 1e-5
# Subtracted from the scores of tokens that may not be drawn: they come behind all others, in order of their scores.
FAR = 1e4


class Truncated(NamedTuple):
    """The N best tokens of each row after the warpers.

    scores: [R, N], -inf for tokens that the warpers drop. is_doubtful: [R, N] bool, True for tokens that the warpers
    may drop or keep. is_all: [R] bool, True if the warpers drop every token that is not among the N best.
    """

    scores: Tensor
    is_doubtful: Tensor
    is_all: Tensor


class Shortlist:
    """Chooses the same tokens as `FullVocabulary`, for rows where the N best tokens suffice for that.

    They suffice if the warpers drop one of them, as they then drop every token that is worse.
    """

    def __init__(
        self, num_best: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, num_tokens: int
    ):
        """num_best: N. num_tokens: K. top_k, min_p: 0 is off. top_p: 1 is off."""
        self.num_best = num_best
        self.seed = seed
        self.temperature = temperature
        self.top_k = TopKLogitsWarper(top_k) if top_k else None
        self.top_p = top_p
        self.min_p = MinPLogitsWarper(min_p) if min_p else None
        self.num_tokens = num_tokens

    def __call__(self, rows: Rows) -> Choice:
        tokens_RN, scores_RN, beyond = top_tokens(rows.scores, self.num_best)
        scores_RN = scores_RN / self.temperature
        is_known_RN = scores_RN > beyond / self.temperature
        left = self._truncate(rows, tokens_RN, scores_RN, is_known_RN)
        noise_RN = gumbel_at(self.seed, rows.positions.tolist(), tokens_RN)
        noise_RN.masked_fill_(upload(rows.greedy, noise_RN.device)[:, None], 0)
        order_RN = torch.where(left.scores.isneginf(), scores_RN - FAR, scores_RN + noise_RN)
        best_RK = order_RN.sort(dim=1, descending=True, stable=True).indices[:, : self.num_tokens]
        are_numbers_R = ~scores_RN.isnan().any(dim=1)
        tokens_RK = tokens_RN.gather(1, best_RK).where(are_numbers_R[:, None], NOT_A_TOKEN)
        is_doubtful_R = left.is_doubtful.gather(1, best_RK[:, :1])[:, 0]
        return Choice(tokens_RK, left.is_all & ~is_doubtful_R | ~are_numbers_R)

    def _truncate(self, rows: Rows, tokens_RN: Tensor, scores_RN: Tensor, is_known_RN: Tensor) -> Truncated:
        """is_known_RN: True for tokens better than every token outside the list; the others may have equals there."""
        no_context = cast(LongTensor, tokens_RN[:, :0])
        left_RN = scores_RN.masked_fill(~is_known_RN, -torch.inf)
        is_all_R = torch.ones(len(left_RN), dtype=torch.bool, device=left_RN.device)
        is_doubtful_RN = torch.zeros_like(is_known_RN)
        if self.top_k:
            left_RN = self.top_k(no_context, cast(FloatTensor, left_RN))
            # The shares below are right only if the list holds all tokens that top-k keeps.
            is_all_R = (is_known_RN & left_RN.isneginf()).any(dim=1)
        if self.top_p < 1:
            shares_RN = left_RN.softmax(dim=1) if self.top_k else self._shares(rows, tokens_RN)
            left_RN, is_doubtful_RN = self._apply_top_p(left_RN, shares_RN)
        if self.min_p:
            left_RN = self.min_p(no_context, cast(FloatTensor, left_RN))
        return Truncated(left_RN, is_doubtful_RN, is_all_R & (is_known_RN & left_RN.isneginf()).any(dim=1))

    def _shares(self, rows: Rows, tokens_RN: Tensor) -> Tensor:
        """[R, N] the tokens' probabilities in the distribution over the whole vocabulary."""
        parts = [part.scores for part in rows.parts()]
        tokens = tokens_RN.split([len(part) for part in parts])
        shares = [
            (part / self.temperature).softmax(dim=1).gather(1, some) for part, some in zip(parts, tokens, strict=True)
        ]
        return torch.cat(shares)

    def _apply_top_p(self, scores_RN: Tensor, shares_RN: Tensor) -> tuple[Tensor, Tensor]:
        """Drops a token if the shares of better ones add up to top-p, as TopPLogitsWarper does.

        Returns the scores, and [R, N] bool, True for tokens that are dropped or kept by rounding alone or by the order
        in which a sort leaves equal scores. The scores of these are kept.
        """
        better_RN = _sums_of_better(scores_RN, shares_RN)
        is_kept_RN = better_RN < self.top_p
        worst_kept = scores_RN.masked_fill(~is_kept_RN, torch.inf).amin(dim=1, keepdim=True)
        best_dropped = scores_RN.masked_fill(is_kept_RN, -torch.inf).amax(dim=1, keepdim=True)
        is_near_RN = (better_RN - self.top_p).abs() < ROUNDING
        is_near_RN |= (scores_RN == worst_kept) & (worst_kept == best_dropped)
        lowest = scores_RN.masked_fill(~is_near_RN, torch.inf).amin(dim=1, keepdim=True)
        highest = scores_RN.masked_fill(~is_near_RN, -torch.inf).amax(dim=1, keepdim=True)
        is_doubtful_RN = (scores_RN >= lowest) & (scores_RN <= highest)
        return scores_RN.masked_fill(~is_kept_RN & ~is_doubtful_RN, -torch.inf), is_doubtful_RN


def _sums_of_better(scores_RN: Tensor, shares_RN: Tensor) -> Tensor:
    """[R, N] float64: for each token, the sum of the shares of better tokens in the row."""
    upwards = scores_RN.argsort(dim=1)
    shares = shares_RN.gather(1, upwards).double()
    sums = shares.flip(1).cumsum(dim=1).flip(1) - shares
    return torch.empty_like(sums).scatter_(1, upwards, sums)
