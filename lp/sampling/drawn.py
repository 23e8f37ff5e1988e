"""Finds the tokens that are best with noise, on a CPU mostly without exact noise.

Most of the time of exact noise is two logarithms in float64 for each token of the vocabulary. So the library computes
it in float32 (lp/platform/csrc/drawn.h), and marks the rows whose best tokens are certain within its error. Exact noise
is computed for the others, which are rare. The tokens are those of exact noise.

    R rows, V vocabulary, K best tokens
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from lp.platform.library import Library, address, library
from lp.sampling.noise import noise_of_rows
from lp.sampling.rows import Rows
from lp.sampling.top_k import best_tokens
from lp.tree import NOT_A_TOKEN


def find_drawn(native: Library, rows: Rows, num_tokens: int) -> np.ndarray:
    """int64 [R, K] the K = num_tokens best tokens of rows whose only warper is a temperature; NOT_A_TOKEN for a NaN.

    rows: with scores that the library can read (see `library_for`).
    """
    scores_RV = rows.scores
    tokens_RK = np.empty((len(scores_RV), num_tokens), np.int64)
    are_sure_R = np.empty(len(scores_RV), bool)
    native.drawn_find(
        _finder(scores_RV.shape[1]), scores_RV.data_ptr(), *scores_RV.shape, rows.choices, num_tokens,
        address(tokens_RK), address(are_sure_R),
    )  # fmt: skip
    if not are_sure_R.all():
        left = np.flatnonzero(~are_sure_R)
        tokens_RK[left] = best_of_exact(rows.take(left), num_tokens)
    return tokens_RK


@cache
def _finder(vocab_size: int) -> int:
    """The library's finder for a vocabulary, which keeps the noise of the last positions."""
    native = library()
    assert native is not None
    return native.drawn_new(vocab_size)


@torch.inference_mode()
def best_of_exact(rows: Rows, num_tokens: int) -> Tensor:
    """[R, K] the same for any scores, by exact noise of the whole vocabulary."""
    return torch.cat(
        [best_of(noisy(one.scores / one.on_device().temperature, one), num_tokens) for one in rows.parts()]
    )


def noisy(scores_RV: Tensor, rows: Rows) -> Tensor:
    """Scores after the rows' warpers, and the noise of the whole vocabulary."""
    if not rows.any("is_drawn"):
        return scores_RV
    how = rows.on_device()
    return noise_of_rows(how.keys, how.is_drawn, scores_RV.shape[1]).add_(scores_RV)


def best_of(scores_RV: Tensor, num_tokens: int) -> Tensor:
    """[R, K] the K = num_tokens best tokens of each row; NOT_A_TOKEN for rows that hold a NaN."""
    best = best_tokens(scores_RV, num_tokens)
    return best.tokens.where(best.are_numbers[:, None], NOT_A_TOKEN)
