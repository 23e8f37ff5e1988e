"""Changes the scores of the tokens that penalties and biases touch, for the rows of many sequences at once.

On a GPU with Triton this is one kernel, elsewhere a few operations on (row, token) pairs; either takes one copy to the
device. A row's scores do not depend on the rows beside it.

    R rows of a sequence, V vocabulary, U touched tokens of a sequence, P pairs of a row and a token
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp.platform import build as kernels
from lp.platform.hardware import upload
from lp.sampling.penalties import ENDS, NO_PATH, SEEN, Touched

# Words of a row's header in the kernel's array: the row, where its sequence's touched tokens begin, their number, where
# its costs begin, where its path begins, the number of tokens below the root, the number of banned tokens, which lie
# behind them, the number of tokens missing before the text may end, the repetition penalty, the presence penalty.
HEADER = 12
# Touched tokens of one program.
BLOCK = 256


def change(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]], is_fused: bool) -> None:
    """Changes scores in place.

    scores_RV: float32, contiguous. touched: for each sequence, the number of its first row and what is done to its
    rows. is_fused: whether a kernel is to do it.
    """
    if is_fused:
        _start_kernel(scores_RV, touched)
    else:
        _change_pairs(scores_RV, touched)


def _start_kernel(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]]) -> None:
    from lp.sampling import triton_kernels

    words = upload(lay_out(touched), scores_RV.device)
    num_rows = sum(len(one.missing) for _, one in touched)
    most = max(len(one.tokens) for _, one in touched)
    kernels.start(
        triton_kernels.penalise, (num_rows, -(-most // BLOCK)),
        scores_RV, words, words.view(torch.float32), scores_RV.stride(0), HEADER=HEADER, BLOCK=BLOCK,
    )  # fmt: skip


def lay_out(touched: Sequence[tuple[int, Touched]]) -> np.ndarray:
    """int32: the headers of all rows, then for each sequence its tokens as (token, count, flags, bias), its costs, and
    each row's path and banned tokens. Headers have places as numbers of words from the beginning.
    """
    headers = np.zeros((sum(len(one.missing) for _, one in touched), HEADER), np.int32)
    floats = headers.view(np.float32)
    parts, begin, end = [headers.ravel()], 0, headers.size
    for first, one in touched:
        num_rows = len(one.missing)
        own = slice(begin, begin + num_rows)
        tokens = np.stack([one.tokens, one.counts, one.flags, one.biases.view(np.int32)], axis=1).ravel()
        tails, starts, num_banned = _tails(one)
        costs_at = end + tokens.size
        headers[own, 0] = np.arange(first, first + num_rows)
        headers[own, 1], headers[own, 2], headers[own, 3] = end, len(one.tokens), costs_at
        headers[own, 4] = costs_at + one.costs.size + starts
        headers[own, 5] = (one.paths != NO_PATH).sum(axis=1)
        headers[own, 6], headers[own, 7] = num_banned, one.missing
        floats[own, 8], floats[own, 9] = one.penalty, one.presence
        parts += [tokens, one.costs.view(np.int32), tails]
        begin, end = begin + num_rows, costs_at + one.costs.size + tails.size
    return np.concatenate(parts)


def _tails(one: Touched) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's path and banned tokens, one row's behind the other's, where each row's begin, and the numbers of its
    banned tokens.
    """
    if one.banned is None:
        num_rows, width = one.paths.shape
        return one.paths.ravel(), np.arange(num_rows) * width, np.zeros(num_rows, np.int64)
    rows = [[*path[path != NO_PATH].tolist(), *banned] for path, banned in zip(one.paths, one.banned, strict=True)]
    sizes = np.array([len(row) for row in rows])
    tails = np.array([token for row in rows for token in row], np.int32)
    return tails, np.cumsum(sizes) - sizes, np.array([len(banned) for banned in one.banned])


def _change_pairs(scores_RV: Tensor, touched: Sequence[tuple[int, Touched]]) -> None:
    assert scores_RV.is_contiguous(), "the change must reach the scores themselves"
    parts = [_pairs(first, one, scores_RV.shape[1]) for first, one in touched]
    index, floats = (np.concatenate(part, axis=-1) if len(parts) > 1 else part[0] for part in zip(*parts, strict=True))
    words = upload(np.concatenate([index.view(np.int32), floats.ravel().view(np.int32)]), scores_RV.device)
    index_P = words[: 2 * len(index)].view(torch.int64)
    biases, penalties, costs, presences, floors = words[2 * len(index) :].view(torch.float32).view(floats.shape)
    flat = scores_RV.view(-1)
    scores = flat[index_P].add_(biases)
    scores = torch.where(scores < 0, scores * penalties, scores / penalties).sub_(costs).sub_(presences)
    flat[index_P] = torch.where(floors < 0, floors, scores)


def _pairs(first: int, one: Touched, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [P], the numbers of the scores that change, and float32 [5, P]: what is added to them, the penalty for a
    token that is seen, what is subtracted for how often it is, what is subtracted as it is there, and -inf if it is
    banned.
    """
    num_rows, num_tokens = len(one.missing), len(one.tokens)
    index = (np.arange(first, first + num_rows) * vocab_size)[:, None] + one.tokens
    floats = np.empty((5, num_rows, num_tokens), np.float32)
    counts, is_seen = one.counts[None], (one.flags & SEEN != 0)[None]
    if one.paths.size:
        in_path = _in_path(one)
        counts, is_seen = counts + in_path, is_seen | (in_path > 0)
    floats[0] = one.biases
    floats[1] = np.where(is_seen, np.float32(one.penalty), np.float32(1.0))
    floats[2] = one.costs[counts]
    floats[3] = np.where(counts > 0, np.float32(one.presence), np.float32(0.0))
    floats[4] = np.where((one.flags & ENDS != 0) & (one.missing > 0)[:, None], -np.inf, 0.0)
    for row, banned in enumerate(one.banned or ()):
        floats[4, row, one.places[banned]] = -np.inf
    return index.ravel(), floats.reshape(5, -1)


def _in_path(one: Touched) -> np.ndarray:
    """[R, U] how often each row's path below the root has each touched token."""
    rows, depths = np.nonzero(one.paths != NO_PATH)
    num_rows, num_tokens = len(one.missing), len(one.tokens)
    places = rows * num_tokens + one.places[one.paths[rows, depths]]
    return np.bincount(places, minlength=num_rows * num_tokens).reshape(num_rows, num_tokens)
