"""Finds the best tokens of each row of scores in one pass over them.

On a CPU, torch's arg max and top-k are slower than memory. The library finds a few best tokens at the speed of memory
(lp/platform/csrc/best.h); many are searched in the blocks with the highest maxima. On a GPU arg max and top-k are as
fast, and fewer kernels.

    R rows, V vocabulary, K or N best tokens
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.platform.library import Library, library

# The number of tokens in a block of `top_tokens`. They lie apart, so that taking maxima vectorises.
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


def library_for(scores_RV: Tensor) -> Library | None:
    """The library, if there is one and it can read these scores: float32, contiguous, on a CPU."""
    is_plain = scores_RV.device.type == "cpu" and scores_RV.dtype == torch.float32 and scores_RV.is_contiguous()
    return library() if is_plain else None


def best_tokens(scores_RV: Tensor, num_tokens: int = 1) -> Best:
    """The K = num_tokens best tokens of each row, K <= V."""
    num_rows, vocab_size = scores_RV.shape
    if (native := library_for(scores_RV)) is not None:
        found = Best(
            torch.empty(num_rows, num_tokens, dtype=torch.int64),
            torch.empty(num_rows, num_tokens),
            torch.empty(num_rows, dtype=torch.bool),
        )
        native.scores_best(scores_RV.data_ptr(), num_rows, vocab_size, num_tokens, *(part.data_ptr() for part in found))
        return found
    best = scores_RV.argmax(dim=1, keepdim=True)
    if num_tokens > 1:
        top = scores_RV.topk(num_tokens, dim=1).indices
        best_last = (top == best).int().argsort(dim=1, stable=True)
        best = torch.cat([best, top.gather(1, best_last)[:, : num_tokens - 1]], dim=1)
    values = scores_RV.gather(1, best)
    return Best(best, values, ~values[:, 0].isnan())


def find_best(native: Library, scores_RV: Tensor, num_tokens: int) -> np.ndarray:
    """int32 [R, K] the K = num_tokens best tokens of each row, NOT_A_TOKEN for rows that hold a NaN.

    scores_RV: see `library_for`.
    """
    found = np.empty((len(scores_RV), num_tokens), np.int32)
    native.scores_best_tokens(scores_RV.data_ptr(), *scores_RV.shape, num_tokens, found)
    return found


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
