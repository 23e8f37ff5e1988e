"""The choosers of a GPU: a few Triton kernels each, in place of tens to hundreds of small ones.

They choose the same tokens as `FullVocabulary` and `Shortlist`. The host waits for nothing. Knows nothing of trees.

    R rows, V vocabulary, C chunks of it, N best tokens of each row, K tokens chosen
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lp import gpu_kernels
from lp.hardware import upload
from lp.sampling.full_vocabulary import Choice, Rows
from lp.sampling.noise import row_keys
from lp.sampling.shortlist import FAR, ROUNDING

# Tokens of a chunk, which one program looks at.
CHUNK = 4096
# The most tokens that a program finds one after the other.
MOST_TOKENS = 16


def can_fuse(device: torch.device | str, num_tokens: int) -> bool:
    """Whether kernels can choose K = num_tokens tokens of each row."""
    return torch.device(device).type == "cuda" and num_tokens <= MOST_TOKENS and not gpu_kernels.missing_triton()


class FusedVocabulary:
    """Chooses by the whole vocabulary, with at most a temperature and noise: two kernels.

    seed, temperature: None for greedy decoding.
    """

    def __init__(self, seed: int | None, temperature: float | None, num_tokens: int):
        self.seed = seed
        self.temperature = temperature
        self.num_tokens = num_tokens

    def __call__(self, rows: Rows) -> Choice:
        from lp.sampling import triton_kernels

        scores, (num_rows, vocab_size), count = rows.scores, rows.scores.shape, self.num_tokens
        num_chunks = -(-vocab_size // CHUNK)
        values = scores.new_empty(num_rows, num_chunks * count)
        tokens = torch.empty(values.shape, dtype=torch.int32, device=scores.device)
        out = torch.empty(num_rows, count, dtype=torch.int64, device=scores.device)
        drawn, keys = (values, values) if self.seed is None else noise_of(rows, self.seed)
        gpu_kernels.start(
            triton_kernels.best_of_chunks, (num_rows, num_chunks),
            scores, drawn, keys, values, tokens, scores.stride(0), vocab_size, float(self.temperature or 1.0),
            IS_NOISY=self.seed is not None, K=count, BLOCK=CHUNK, num_warps=8,
        )  # fmt: skip
        found = num_chunks * count
        gpu_kernels.start(
            triton_kernels.best_of_rows, (num_rows,), values, tokens, out, found, K=count, BLOCK=_power_of_two(found)
        )
        return Choice(out, torch.ones_like(out[:, 0], dtype=torch.bool))


class FusedShortlist:
    """Chooses as `Shortlist` does, with the same arguments: top-k and two kernels."""

    def __init__(
        self, num_best: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, num_tokens: int
    ):
        self.num_best = num_best
        self.seed = seed
        self.temperature = temperature
        self.top_k, self.top_p, self.min_p = top_k, top_p, min_p
        self.num_tokens = num_tokens

    def __call__(self, rows: Rows) -> Choice:
        from lp.sampling import triton_kernels

        scores, (num_rows, vocab_size) = rows.scores, rows.scores.shape
        best = scores.topk(self.num_best, dim=1)
        num_chunks = -(-vocab_size // CHUNK)
        sums = scores.new_empty(num_rows, num_chunks, 2)
        if self.top_p < 1 and not self.top_k:
            gpu_kernels.start(
                triton_kernels.sums_of_chunks, (num_rows, num_chunks),
                scores, sums, scores.stride(0), vocab_size, float(self.temperature), BLOCK=CHUNK,
            )  # fmt: skip
        out = torch.empty(num_rows, 1 + self.num_tokens, dtype=torch.int64, device=scores.device)
        gpu_kernels.start(
            triton_kernels.settle, (num_rows,),
            best.values, best.indices, sums, *noise_of(rows, self.seed), out, num_chunks, float(self.temperature),
            self.top_k, float(self.top_p), float(self.min_p), ROUNDING, FAR,
            HAS_TOP_K=self.top_k > 0, HAS_TOP_P=self.top_p < 1, HAS_MIN_P=self.min_p > 0,
            K=self.num_tokens, N=self.num_best, BLOCK=_power_of_two(num_chunks), num_warps=8,
        )  # fmt: skip
        return Choice(out[:, 1:], out[:, 0].bool())


def noise_of(rows: Rows, seed: int) -> tuple[Tensor, Tensor]:
    """int64 [R] each: whether a row gets noise, and of what it is made."""
    drawn, keys = upload(
        np.stack([~rows.greedy, row_keys(seed, rows.positions.tolist())]).astype(np.int64), rows.scores.device
    )
    return drawn, keys


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
