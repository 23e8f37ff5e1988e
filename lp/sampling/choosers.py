"""Chooses each row's tokens: those with the highest scores after temperature, top-k, top-p, min-p and noise.

`FullVocabulary` can choose for every row. `Shortlist` chooses the same tokens without sorting the vocabulary, among a
row's best tokens, where these suffice. `FusedChooser` stands for either on a GPU: a few Triton kernels in place of tens
to hundreds of small ones, which a graph can capture, as they read from the device how each row's token is chosen. On a
CPU the library chooses for most rows (lp/platform/csrc/best.h, drawn.h and truncated.h), as torch takes longer for
small tensors than for the work itself.

    R rows, V vocabulary, C chunks of it, N best tokens of each row, K tokens chosen
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.platform import build as kernels
from lp.platform.hardware import upload
from lp.sampling.drawn import best_of, best_of_exact, find_drawn, noisy
from lp.sampling.noise import gumbel_of
from lp.sampling.rows import Chooser, OnDevice, Rows
from lp.sampling.settings import Sampling
from lp.sampling.top_k import find_best, library_for, top_tokens
from lp.tree import NOT_A_TOKEN

# The best tokens of a row among which a GPU's kernels look: N.
NUM_BEST = 128
# Lengths of the shortlists: the second is used for rows that the first did not decide.
SHORTLISTS = (NUM_BEST, 4096)
# If a sum of probabilities is nearer than this to top-p, rounding decides which of the two is greater.
ROUNDING = 1e-5
# Subtracted from the scores of tokens that may not be drawn: they come behind all others, in order of their scores.
FAR = 1e4
# Tokens of a chunk, which one program of a GPU looks at.
CHUNK = 4096
# The most tokens that a program finds one after the other.
MOST_TOKENS = 16
WHOLE, TRUNCATED = "whole", "truncated"


def truncates(sampling: Sampling) -> bool:
    """Whether the settings drop tokens before one is drawn."""
    return bool(sampling.temperature and (sampling.top_k or sampling.top_p != 1 or sampling.min_p))


def choosers_for(sampling: Sampling, vocab_size: int, num_tokens: int, is_fused: bool) -> tuple[Chooser, ...]:
    """The choosers of K = num_tokens tokens for these settings: shortlists, shortest first, then the full vocabulary.

    is_fused: whether kernels of a GPU may stand for the first.
    """
    if not truncates(sampling):
        return (FusedChooser(WHOLE, num_tokens) if is_fused else FullVocabulary(num_tokens, not sampling.temperature),)
    assert sampling.top_p is not None
    largest = vocab_size // (2 if sampling.top_p < 1 else 100)  # top-p sorts the vocabulary, so even a long list pays
    is_of_all = not sampling.top_k and sampling.top_p != 1
    sizes = [size for size in SHORTLISTS if num_tokens <= size <= largest]
    short: list[Chooser] = [Shortlist(size, num_tokens, is_of_all) for size in sizes]
    if is_fused and sizes and sizes[0] == NUM_BEST:
        short[0] = FusedChooser(TRUNCATED, num_tokens)
    return (*short, FullVocabulary(num_tokens, is_greedy=False, is_truncated=True))


@dataclass(frozen=True)
class FullVocabulary(Chooser):
    """Decides every row. All choosers that decide a row choose the same first token for it.

    num_tokens: K. is_greedy: whether it takes rows without warpers and noise alone; it takes all others together.
    is_truncated: whether rows have top-k, top-p or min-p. No other chooser equal to this one takes rows for which more
    would be computed.
    """

    num_tokens: int
    is_greedy: bool
    is_truncated: bool = False

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        if (found := self.find(rows)) is not None:
            tokens_RK = torch.from_numpy(found)
        elif self.is_greedy:
            tokens_RK = best_of(rows.scores, self.num_tokens)
        elif self.is_truncated:
            tokens_RK = torch.cat([best_of(noisy(warp(part), part), self.num_tokens) for part in rows.parts()])
        else:
            tokens_RK = best_of_exact(rows, self.num_tokens)
        return torch.cat([tokens_RK.new_ones(len(tokens_RK), 1), tokens_RK], dim=1)

    def find(self, rows: Rows) -> np.ndarray | None:
        """See Chooser."""
        if self.is_truncated or (native := library_for(rows.scores)) is None:
            return None
        if self.is_greedy:
            return find_best(native, rows.scores, self.num_tokens)
        return find_drawn(native, rows, self.num_tokens).astype(np.int32)


def warp(rows: Rows) -> Tensor:
    """[R, V] the rows' scores after the warpers, -inf for tokens that are dropped. The scores may be the rows' own if
    no row has a warper.
    """
    scores_RV = rows.scores
    if not any(map(rows.any, ("temperature", "top_k", "top_p", "min_p"))):
        return scores_RV
    how = rows.on_device()
    if rows.any("temperature"):
        scores_RV = scores_RV / how.temperature
    if rows.any("top_k"):
        scores_RV = keep_top_k(scores_RV, how, int(rows.setting("top_k").max()))
    if rows.any("top_p"):
        scores_RV = _keep_top_p(scores_RV, how, upload(rows.dropped, scores_RV.device)[:, None])
    if rows.any("min_p"):
        scores_RV = keep_min_p(scores_RV, how)
    return scores_RV


def keep_top_k(scores_RV: Tensor, how: OnDevice, largest: int) -> Tensor:
    """Drops all tokens worse than a row's top-k-th. largest: the largest top-k of a row."""
    best = scores_RV.topk(min(largest, scores_RV.shape[1]), dim=1).values
    worst_kept = best.gather(1, (how.top_k - 1).clamp(0, best.shape[1] - 1))
    return scores_RV.masked_fill((scores_RV < worst_kept) & (how.top_k > 0), -torch.inf)


def _keep_top_p(scores_RV: Tensor, how: OnDevice, dropped_R1: Tensor) -> Tensor:
    """Drops the worst tokens that have at most the share `dropped` of the probability together, but never the best."""
    upwards, order = scores_RV.sort(dim=1)
    is_dropped = (upwards.softmax(dim=1).cumsum(dim=1) <= dropped_R1) & (how.top_p < 1)
    is_dropped[:, -1] = False
    return scores_RV.masked_fill(is_dropped.scatter(1, order, is_dropped), -torch.inf)


def keep_min_p(scores_RV: Tensor, how: OnDevice) -> Tensor:
    """Drops tokens whose probability is less than min-p times the best one's."""
    shares = scores_RV.softmax(dim=1)
    return scores_RV.masked_fill(shares < how.min_p * shares.amax(dim=1, keepdim=True), -torch.inf)


class Truncated(NamedTuple):
    """The N best tokens of each row after the warpers.

    scores: [R, N], -inf for tokens that the warpers drop. is_doubtful: [R, N] bool, True for tokens that the warpers
    may drop or keep. is_all: [R, 1] bool, True if the warpers drop every token that is not among the N best.
    """

    scores: Tensor
    is_doubtful: Tensor
    is_all: Tensor


@dataclass(frozen=True)
class Shortlist(Chooser):
    """Chooses the same tokens as `FullVocabulary`, for rows where the N best tokens suffice for that.

    They suffice if the warpers drop one of them, as they then drop every token that is worse.

    num_best: N. num_tokens: K. is_of_all: whether top-p is a share of the whole vocabulary's probability, as it is for
    rows without top-k; the two kinds of rows have choosers of their own.
    """

    num_best: int
    num_tokens: int
    is_of_all: bool

    def find(self, rows: Rows) -> np.ndarray | None:
        """See Chooser."""
        tokens_RK, are_sure_R = self.found(rows)
        return tokens_RK if are_sure_R.all() else None

    def found(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """int32 [R, K] what the library finds, and bool [R], for which rows that is certain."""
        num_rows = len(rows.scores)
        tokens_RK, are_sure_R = np.zeros((num_rows, self.num_tokens), np.int32), np.zeros(num_rows, bool)
        if self.num_best == NUM_BEST and (native := library_for(rows.scores)) is not None:
            native.truncated_find(
                rows.scores.data_ptr(), *rows.scores.shape, rows.choices, NUM_BEST, self.num_tokens, tokens_RK,
                are_sure_R,
            )  # fmt: skip
        return tokens_RK, are_sure_R

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        tokens_RK, are_sure_R = self.found(rows)
        left = np.flatnonzero(~are_sure_R)
        if len(left) == len(are_sure_R):
            return self._chosen(rows)
        packed = torch.from_numpy(np.concatenate([are_sure_R[:, None], tokens_RK], axis=1, dtype=np.int64))
        if len(left):
            packed[torch.from_numpy(left)] = self._chosen(rows.take(left))
        return packed

    def _chosen(self, rows: Rows) -> Tensor:
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
        is_decided_R1 = left.is_all & ~left.is_doubtful.gather(1, best_RK[:, :1]) | ~are_numbers_R1
        return torch.cat([is_decided_R1, tokens_RK], dim=1)

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


def can_fuse(device: torch.device | str, num_tokens: int = 1) -> bool:
    """Whether kernels can choose K = num_tokens tokens of each row."""
    return torch.device(device).type == "cuda" and num_tokens <= MOST_TOKENS and not kernels.missing_triton()


def choose_whole(scores: Tensor, choices: Tensor) -> Tensor:
    """Chooses by the whole vocabulary, with at most a temperature and noise: two kernels.

    scores: float32 [R, V]. choices: int64 [R, 4], as
    LAYOUT of lp/sampling/rows.py. Returns int64 [R, 1 + MOST_TOKENS]: whether the row is
    decided, then its best tokens, K of which are valid; -1 for rows with a NaN. Rows with K = 0 hold nothing.
    """
    from lp.sampling import triton_kernels

    num_rows, vocab_size = scores.shape
    num_chunks = -(-vocab_size // CHUNK)
    values = scores.new_empty(num_rows, MOST_TOKENS, num_chunks)
    tokens = torch.empty(values.shape, dtype=torch.int32, device=scores.device)
    out = torch.empty(num_rows, 1 + MOST_TOKENS, dtype=torch.int64, device=scores.device)
    words = choices.view(torch.int32)
    kernels.start(
        triton_kernels.best_of_chunks, (num_rows, num_chunks),
        scores, choices, words, choices.view(torch.float32), values, tokens, scores.stride(0), vocab_size,
        MOST=MOST_TOKENS, BLOCK=CHUNK, num_warps=8,
    )  # fmt: skip
    kernels.start(
        triton_kernels.best_of_rows, (num_rows,),
        values, tokens, words, out, num_chunks, MOST=MOST_TOKENS, BLOCK=_power_of_two(num_chunks * MOST_TOKENS),
    )  # fmt: skip
    return out


def choose_truncated(scores: Tensor, choices: Tensor) -> Tensor:
    """Chooses as `Shortlist` does among NUM_BEST < V tokens: top-k and two kernels. See choose_whole."""
    from lp.sampling import triton_kernels

    num_rows, vocab_size = scores.shape
    num_chunks = -(-vocab_size // CHUNK)
    best = scores.topk(NUM_BEST, dim=1)
    sums = scores.new_empty(num_rows, num_chunks, 2)
    out = torch.empty(num_rows, 1 + MOST_TOKENS, dtype=torch.int64, device=scores.device)
    words, floats = choices.view(torch.int32), choices.view(torch.float32)
    kernels.start(
        triton_kernels.sums_of_chunks, (num_rows, num_chunks),
        scores, words, floats, sums, scores.stride(0), vocab_size, BLOCK=CHUNK,
    )  # fmt: skip
    kernels.start(
        triton_kernels.best_truncated, (num_rows,),
        best.values, best.indices, sums, choices, words, floats, out, num_chunks, ROUNDING, FAR,
        MOST=MOST_TOKENS, N=NUM_BEST, BLOCK=_power_of_two(num_chunks), num_warps=8,
    )  # fmt: skip
    return out


# By name. Rows that `TRUNCATED` does not decide need their scores once more.
KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {WHOLE: choose_whole, TRUNCATED: choose_truncated}


@dataclass(frozen=True)
class FusedChooser(Chooser):
    """Starts kernels. kind: WHOLE or TRUNCATED. num_tokens: K."""

    kind: str
    num_tokens: int

    @property
    def graph_kind(self) -> str:
        return self.kind

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser. There are 1 + MOST_TOKENS columns, of which 1 + K mean something."""
        return KINDS[self.kind](rows.scores, rows.uploaded())


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
