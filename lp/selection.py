"""The best tokens of each row of scores, in one pass over them.

A pass that takes maxima of blocks runs at the speed of memory, which arg max and top-k over a whole vocabulary do not;
the rest looks at a few blocks only.

    R rows, V vocabulary, B entries of a block, K tokens
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128


class Best(NamedTuple):
    """tokens: [R, K] int64, best first; of several that are best, the first in the vocabulary comes first.
    are_numbers: [R] bool, False for rows that hold a NaN.
    """

    tokens: Tensor
    are_numbers: Tensor


def best_tokens(scores_RV: Tensor, num_tokens: int = 1) -> Best:
    """The K = num_tokens best tokens of each row."""
    num_rows, vocab_size = scores_RV.shape
    num_blocks = vocab_size // BLOCK
    if num_blocks <= num_tokens:
        values, tokens = scores_RV, torch.arange(vocab_size, device=scores_RV.device).expand(num_rows, -1)
    else:
        values, tokens = _best_blocks(scores_RV, num_blocks, num_tokens)
    best = values.argmax(dim=1, keepdim=True)
    are_numbers = ~values.gather(1, best).isnan()[:, 0]
    if num_tokens == 1:
        return Best(tokens.gather(1, best), are_numbers)
    top = values.topk(num_tokens, dim=1).indices
    best_last = (top == best).int().argsort(dim=1, stable=True)
    others = top.gather(1, best_last)[:, : num_tokens - 1]
    return Best(tokens.gather(1, torch.cat([best, others], dim=1)), are_numbers)


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
