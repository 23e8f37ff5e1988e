"""Finds the best tokens of rows of logits on a GPU, with temperature and noise, as Triton kernels.

Import this only where Triton is.

    R rows, V vocabulary, C chunks of it, K best tokens
"""

import triton
import triton.language as tl


@triton.jit
def best_of_chunks(
    scores, temperatures, keys, values, tokens, row_stride, num_tokens,
    IS_NOISY: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs [R, C]. values, tokens: [R, C, K], the best of each chunk, equals in the order of their ids.

    temperatures: [R] float32, 0 for rows without temperature and noise. keys: int64 [R], the row's of `gumbel_at`. A
    NaN makes a chunk's first value NaN.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    is_token = token < num_tokens
    score = tl.load(scores + row.to(tl.int64) * row_stride + token, mask=is_token, other=float("-inf"))
    if IS_NOISY:
        temperature = tl.load(temperatures + row)
        is_drawn = temperature > 0
        key = tl.load(keys + row).to(tl.uint64, bitcast=True)
        bits = (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
        bits = (bits ^ (bits >> 31)) >> 12
        uniform = (bits.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
        noise = (-tl.log(-tl.log(uniform))).to(tl.float32)
        drawn = tl.div_rn(score, tl.where(is_drawn, temperature, 1.0)) + noise
        score = tl.where(is_drawn, drawn, score)
    is_nan = tl.max((is_token & (score != score)).to(tl.int32), axis=0) > 0
    score = tl.where(score == score, score, float("-inf"))
    at = (row * tl.num_programs(1) + chunk) * K
    for k in tl.static_range(K):
        best = tl.max(score, axis=0)
        first = tl.min(tl.where(is_token & (score == best), token, 0x7FFFFFFF), axis=0)
        tl.store(values + at + k, tl.where(is_nan & (k == 0), float("nan"), best))
        tl.store(tokens + at + k, first)
        is_token = is_token & (token != first)
        score = tl.where(token == first, float("-inf"), score)


@triton.jit
def best_of_rows(values, tokens, out, num_found, K: tl.constexpr, BLOCK: tl.constexpr):
    """Programs [R]. values, tokens: [R, num_found] of all chunks. out: int64 [R, K]; -1 in rows with a NaN."""
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    is_found = n < num_found
    value = tl.load(values + row * num_found + n, mask=is_found, other=float("-inf"))
    token = tl.load(tokens + row * num_found + n, mask=is_found, other=0x7FFFFFFF)
    is_nan = tl.max((value != value).to(tl.int32), axis=0) > 0
    value = tl.where(value == value, value, float("-inf"))
    for k in tl.static_range(K):
        best = tl.max(value, axis=0)
        first = tl.min(tl.where(value == best, token, 0x7FFFFFFF), axis=0)
        tl.store(out + row * K + k, tl.where(is_nan, -1, first).to(tl.int64))
        value = tl.where(token == first, float("-inf"), value)
        token = tl.where(token == first, 0x7FFFFFFF, token)
