"""Finds the best tokens of each row of scores in one pass over them.

On a CPU the pass takes maxima of blocks and runs at the speed of memory, unlike arg max and top-k over a whole
vocabulary. Only the few blocks with the highest maxima are then searched. On a GPU these two are as fast, and fewer
kernels. Knows nothing of what scores mean.

    R rows, V vocabulary, K or N best tokens
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The number of neighbouring tokens in a block.
BLOCK = 128
# The number of tokens in a block where many blocks are searched. They lie apart, so that taking maxima vectorises.
STRIDED_BLOCK = 16


class Best(NamedTuple):
    """The K best tokens of each row.

    tokens: [R, K] int64, best first; if several are the best, the first of them in the vocabulary comes first.
    values: [R, K] their scores. are_numbers: [R] bool, False for rows that hold a NaN.
    """

    tokens: Tensor
    values: Tensor
    are_numbers: Tensor


class TopTokens(NamedTuple):
    """The N best tokens of each row.

    tokens: [R, N] int64, ascending by id. values: [R, N] their scores. beyond: [R, 1] the lowest of these scores; no
    other token has a higher one, but some may have the same.
    """

    tokens: Tensor
    values: Tensor
    beyond: Tensor


def best_tokens(scores_RV: Tensor, num_tokens: int = 1) -> Best:
    """The K = num_tokens best tokens of each row, K <= V."""
    num_rows, vocab_size = scores_RV.shape
    num_blocks = vocab_size // BLOCK
    if num_blocks <= num_tokens or scores_RV.device.type == "cuda":
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
    """Scores in the K blocks that hold a row's K best tokens and behind the last block; and their tokens, ascending.

    A NaN counts as the best score.
    """
    num_rows, vocab_size = scores_RV.shape
    blocks = scores_RV[:, : num_blocks * BLOCK].view(num_rows, num_blocks, BLOCK)
    best = blocks.amax(dim=2)
    first = best.argmax(dim=1, keepdim=True)  # the first of equal blocks, which top-k does not promise
    chosen = best.scatter(1, first, float("inf")).topk(num_tokens, dim=1).indices.sort(dim=1).values
    values = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).view(num_rows, -1)
    within = torch.arange(BLOCK, device=scores_RV.device)
    tokens = (chosen[:, :, None] * BLOCK + within).view(num_rows, -1)
    rest = torch.arange(num_blocks * BLOCK, vocab_size, device=scores_RV.device).expand(num_rows, -1)
    return torch.cat([values, scores_RV[:, num_blocks * BLOCK :]], dim=1), torch.cat([tokens, rest], dim=1)


def top_tokens(scores_RV: Tensor, num_tokens: int) -> TopTokens:
    """The N = num_tokens best tokens of each row, N < V. A NaN counts as the best score, and makes `beyond` NaN."""
    num_blocks = scores_RV.shape[1] // STRIDED_BLOCK
    if num_blocks > num_tokens and scores_RV.device.type != "cuda":
        among = _in_best_strided_blocks(scores_RV, num_blocks, num_tokens)
        tokens = among.gather(1, scores_RV.gather(1, among).topk(num_tokens, dim=1, sorted=False).indices)
    else:
        tokens = scores_RV.topk(num_tokens, dim=1, sorted=False).indices
    tokens = tokens.sort(dim=1).values
    values = scores_RV.gather(1, tokens)
    return TopTokens(tokens, values, values.amin(dim=1, keepdim=True))


def _in_best_strided_blocks(scores_RV: Tensor, num_blocks: int, num_chosen: int) -> Tensor:
    """[R, num_chosen * STRIDED_BLOCK + rest] tokens, among which are a row's `num_chosen` best."""
    num_rows, vocab_size = scores_RV.shape
    num_in_blocks = num_blocks * STRIDED_BLOCK
    strided = scores_RV[:, :num_in_blocks].view(num_rows, STRIDED_BLOCK, num_blocks)
    chosen = strided.amax(dim=1).topk(num_chosen, dim=1, sorted=False).indices
    offsets = torch.arange(0, num_in_blocks, num_blocks, device=scores_RV.device)
    rest = torch.arange(num_in_blocks, vocab_size, device=scores_RV.device).expand(num_rows, -1)
    return torch.cat([(chosen[:, :, None] + offsets).flatten(1), rest], dim=1)
