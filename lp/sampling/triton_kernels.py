"""Finds the best tokens of rows of logits on a GPU, with temperature and noise, as Triton kernels.

Import this only where Triton is.

    R rows, V vocabulary, C chunks of it, K best tokens
"""
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def best_of_chunks(
    scores, drawn, keys, values, tokens, row_stride, num_tokens, temperature,
    IS_NOISY: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs [R, C]. values, tokens: [R, C, K], the best of each chunk, equals in the order of their ids.

    drawn, keys: int64 [R], whether a row gets noise, and of what it is made (`row_keys`). A NaN makes a chunk's first
    value NaN.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    is_token = token < num_tokens
    score = tl.load(scores + row.to(tl.int64) * row_stride + token, mask=is_token, other=float("-inf"))
    if IS_NOISY:
        key = tl.load(keys + row).to(tl.uint64, bitcast=True)
        bits = (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
        bits = (bits ^ (bits >> 31)) >> 12
        uniform = (bits.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
        noise = (-tl.log(-tl.log(uniform))).to(tl.float32)
        score = tl.div_rn(score, temperature) + tl.where(tl.load(drawn + row) != 0, noise, 0.0)
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


@triton.jit
def sums_of_chunks(scores, sums, row_stride, num_tokens, temperature, BLOCK: tl.constexpr):
    """Programs [R, C]. sums: [R, C, 2], the largest score of a chunk after the temperature, and the sum of exponentials
    of what the others are below it.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row.to(tl.int64) * row_stride + token, mask=token < num_tokens, other=float("-inf"))
    score = tl.div_rn(score, temperature)
    most = tl.max(score, axis=0)
    base = tl.where(most == float("-inf"), 0.0, most)
    at = (row * tl.num_programs(1) + chunk) * 2
    tl.store(sums + at, most)
    tl.store(sums + at + 1, tl.sum(tl.exp(score - base), axis=0))


@triton.jit
def settle(
    values, tokens, sums, drawn, keys, out, num_chunks, temperature, top_k, top_p, min_p, rounding, far,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, HAS_MIN_P: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs [R]. values, tokens: [R, N], the row's best. out: int64 [R, 1 + K], whether the row is settled, then its
    best tokens; -1 in rows with a NaN. It does what `Shortlist` does, and leaves no fewer rows unsettled.
    """
    row = tl.program_id(0)
    n = tl.arange(0, N)
    token = tl.load(tokens + row * N + n)
    value = tl.load(values + row * N + n)
    is_nan = tl.max((value != value).to(tl.int32), axis=0) > 0
    value = tl.where(value == value, value, float("-inf"))
    score = tl.div_rn(value, temperature)
    is_known = score > tl.min(score, axis=0)
    left = tl.where(is_known, score, float("-inf"))
    best_score = tl.max(score, axis=0)
    is_all = n >= 0
    is_doubtful = n < 0
    if HAS_TOP_K:
        as_good = tl.sum((left[None, :] >= left[:, None]).to(tl.int32), axis=1)
        last = tl.max(tl.where(as_good >= top_k, left, float("-inf")), axis=0)
        left = tl.where(left < last, float("-inf"), left)
        is_all = (n >= 0) & (tl.max((is_known & (left == float("-inf"))).to(tl.int32), axis=0) > 0)
    if HAS_TOP_P:
        if HAS_TOP_K:
            shares = tl.exp(left - best_score)
            shares = shares / tl.sum(shares, axis=0)
        else:
            c = tl.arange(0, BLOCK)
            is_chunk = c < num_chunks
            most = tl.load(sums + (row * num_chunks + c) * 2, mask=is_chunk, other=float("-inf"))
            sum_below = tl.load(sums + (row * num_chunks + c) * 2 + 1, mask=is_chunk, other=0.0)
            whole = tl.sum(tl.where(is_chunk, sum_below * tl.exp(most - best_score), 0.0), axis=0)
            shares = tl.exp(score - best_score) / whole
        better = tl.sum(tl.where(left[None, :] > left[:, None], shares[None, :], 0.0), axis=1)
        with_equals = tl.sum(tl.where(left[None, :] >= left[:, None], shares[None, :], 0.0), axis=1) - shares
        is_kept = better < top_p
        is_near = (tl.abs(better - top_p) < rounding) | (is_kept & (with_equals > top_p - rounding))
        is_near = is_near & is_known
        lowest = tl.min(tl.where(is_near, left, float("inf")), axis=0)
        highest = tl.max(tl.where(is_near, left, float("-inf")), axis=0)
        is_doubtful = (left >= lowest) & (left <= highest)
        left = tl.where(is_kept | is_doubtful, left, float("-inf"))
    if HAS_MIN_P:
        ratio = tl.exp(left - best_score)
        is_doubtful = is_doubtful | (tl.abs(ratio - min_p) < rounding)
        left = tl.where(ratio < min_p, float("-inf"), left)
    is_cut = tl.max((is_known & (left == float("-inf"))).to(tl.int32), axis=0) > 0
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    bits = (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    bits = (bits ^ (bits >> 31)) >> 12
    uniform = (bits.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    noise = tl.where(tl.load(drawn + row) != 0, (-tl.log(-tl.log(uniform))).to(tl.float32), 0.0)
    order = tl.where(left == float("-inf"), score - far, score + noise)
    is_settled = is_cut & (tl.min(is_all.to(tl.int32), axis=0) > 0)
    for k in tl.static_range(K):
        best = tl.max(order, axis=0)
        first = tl.min(tl.where(order == best, token, 0x7FFFFFFF), axis=0)
        if k == 0:
            is_first = token == first
            is_settled = is_settled & (tl.max((is_first & is_doubtful).to(tl.int32), axis=0) == 0)
        tl.store(out + row * (K + 1) + 1 + k, tl.where(is_nan, -1, first).to(tl.int64))
        order = tl.where(token == first, float("-inf"), order)
    tl.store(out + row * (K + 1), (is_settled | is_nan).to(tl.int64))
