"""The choosers of a GPU: a few Triton kernels each, in place of tens to hundreds of small ones.

They choose the same tokens as `FullVocabulary` and `Shortlist`. The host waits for nothing, and a graph can capture
them: how each row's token is chosen, they read from the device. Knows nothing of trees.

    R rows, V vocabulary, C chunks of it, N best tokens of each row, K tokens chosen
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lp.platform import build as kernels
from lp.sampling.rows import Rows
from lp.sampling.shortlist import FAR, ROUNDING

# Tokens of a chunk, which one program looks at.
CHUNK = 4096
# The most tokens that a program finds one after the other.
MOST_TOKENS = 16
# The best tokens of a row among which truncation looks: N.
NUM_BEST = 128


def can_fuse(device: torch.device | str, num_tokens: int = 1) -> bool:
    """Whether kernels can choose K = num_tokens tokens of each row."""
    return torch.device(device).type == "cuda" and num_tokens <= MOST_TOKENS and not kernels.missing_triton()


def choose_whole(scores: Tensor, choices: Tensor) -> Tensor:
    """Chooses by the whole vocabulary, with at most a temperature and noise: two kernels.

    scores: float32 [R, V]. choices: int64 [R, 4], as
    LAYOUT of lp/sampling/rows.py. Returns int64 [R, 1 + MOST_TOKENS]: whether the row is
    settled, then its best tokens, K of which are valid; -1 for rows with a NaN. Rows with K = 0 hold nothing.
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
        triton_kernels.settle, (num_rows,),
        best.values, best.indices, sums, choices, words, floats, out, num_chunks, ROUNDING, FAR,
        MOST=MOST_TOKENS, N=NUM_BEST, BLOCK=_power_of_two(num_chunks), num_warps=8,
    )  # fmt: skip
    return out


WHOLE, TRUNCATED = "whole", "truncated"
# By name. Rows that `TRUNCATED` does not settle need their scores once more.
KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {WHOLE: choose_whole, TRUNCATED: choose_truncated}


@dataclass(frozen=True)
class FusedChooser:
    """The Chooser that starts kernels. kind: WHOLE or TRUNCATED. num_tokens: K."""

    kind: str
    num_tokens: int

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser. There are 1 + MOST_TOKENS columns, of which 1 + K mean something."""
        return KINDS[self.kind](rows.scores, rows.uploaded())


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
