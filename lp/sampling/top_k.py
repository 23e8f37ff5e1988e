"""The best tokens of each row of scores, by one pass over them.

A pass that takes maxima of blocks runs at the speed of memory, which arg max and top-k over a whole vocabulary do not;
the rest looks into a few blocks only. Knows nothing of what scores mean.

    R rows, V vocabulary, K and N tokens
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128
"""Neighbouring tokens that share a maximum."""
STRIDED_BLOCK = 16
"""Tokens that share a maximum where a hundred blocks are looked into; they lie apart, so that maxima vectorise."""


class Best(NamedTuple):
    """tokens: [R, K] int64, best first; of several that are best, the first in the vocabulary comes first.
    values: [R, K] their scores. are_numbers: [R] bool, False for rows that hold a NaN.
    """

    tokens: Tensor
    values: Tensor
    are_numbers: Tensor


class TopTokens(NamedTuple):
    """tokens: [R, N] int64 ascending, a row's N best. values: [R, N] their scores.
    beyond: [R, 1] no token that was left out is better; of tokens as good as that, some may have been left out.
    """

    tokens: Tensor
    values: Tensor
    beyond: Tensor


def best_tokens(scores_RV: Tensor, num_tokens: int = 1) -> Best:
    """The K = num_tokens best tokens of each row."""
    num_rows, vocab_size = scores_RV.shape
    num_blocks = vocab_size // BLOCK
    if num_blocks <= num_tokens:
        values, tokens = scores_RV, torch.arange(vocab_size, device=scores_RV.device).expand(num_rows, -1)
    else:
        values, tokens = _best_blocks(scores_RV, num_blocks, num_tokens)
    best = values.argmax(dim=1, keepdim=True)
    if num_tokens > 1:
        top = values.topk(num_tokens, dim=1).indices
        best_last = (top == best).int().argsort(dim=1, stable=True)
        best = torch.cat([best, top.gather(1, best_last)[:, : num_tokens - 1]], dim=1)
    found = values.gather(1, best)
    return Best(tokens.gather(1, best), found, ~found[:, 0].isnan())


def _best_blocks(scores_RV: Tensor, num_blocks: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Scores of the K blocks that hold a row's best tokens, and of those after the last block; their tokens, which
    ascend. NaN counts as the best.
    """
    num_rows, vocab_size = scores_RV.shape
    blocks = scores_RV[:, : num_blocks * BLOCK].view(num_rows, num_blocks, BLOCK)
    best = blocks.amax(dim=2)
    first = best.argmax(dim=1, keepdim=True)  # of equal ones the first, which top-k does not promise
    chosen = best.scatter(1, first, float("inf")).topk(num_tokens, dim=1).indices.sort(dim=1).values
    values = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).view(num_rows, -1)
    within = torch.arange(BLOCK, device=scores_RV.device)
    tokens = (chosen[:, :, None] * BLOCK + within).view(num_rows, -1)
    rest = torch.arange(num_blocks * BLOCK, vocab_size, device=scores_RV.device).expand(num_rows, -1)
    return torch.cat([values, scores_RV[:, num_blocks * BLOCK :]], dim=1), torch.cat([tokens, rest], dim=1)


def top_tokens(scores_RV: Tensor, num_tokens: int) -> TopTokens:
    """The N = num_tokens best tokens of each row, N < V. NaN counts as the best, and makes `beyond` NaN."""
    num_blocks = scores_RV.shape[1] // STRIDED_BLOCK
    if num_blocks > num_tokens:
        among = _in_best_strided_blocks(scores_RV, num_blocks, num_tokens)
        tokens = among.gather(1, scores_RV.gather(1, among).topk(num_tokens, dim=1, sorted=False).indices)
    else:
        tokens = scores_RV.topk(num_tokens, dim=1, sorted=False).indices
    tokens = tokens.sort(dim=1).values
    values = scores_RV.gather(1, tokens)
    return TopTokens(tokens, values, values.amin(dim=1, keepdim=True))


def _in_best_strided_blocks(scores_RV: Tensor, num_blocks: int, num_chosen: int) -> Tensor:
    """[R, num_chosen * STRIDED_BLOCK + rest] tokens that hold a row's best `num_chosen`."""
    num_rows, vocab_size = scores_RV.shape
    num_in_blocks = num_blocks * STRIDED_BLOCK
    strided = scores_RV[:, :num_in_blocks].view(num_rows, STRIDED_BLOCK, num_blocks)
    chosen = strided.amax(dim=1).topk(num_chosen, dim=1, sorted=False).indices
    offsets = torch.arange(0, num_in_blocks, num_blocks, device=scores_RV.device)
    rest = torch.arange(num_in_blocks, vocab_size, device=scores_RV.device).expand(num_rows, -1)
    return torch.cat([(chosen[:, :, None] + offsets).flatten(1), rest], dim=1)
