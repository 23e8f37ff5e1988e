"""Finds the best tokens of rows of logits on a GPU, with temperature, truncation and noise, as Triton kernels.

All that may differ from step to step is read from the device, so a captured graph serves every request. `choices`,
`words` and `floats` are one array, int64 [R, 4], as int64, int32 and float32; lp/sampling/rows.py lays it out. A row
for which no token is wanted takes no time. Import this only where Triton is.

    R rows, V vocabulary, C chunks of it, N best tokens of each row, MOST tokens chosen at most
"""
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

# 2 to the power of -52, the distance of two uniform numbers, and one less than their number, whose bits are all set.
STEP = tl.constexpr(2.220446049250313e-16)
LAST = tl.constexpr(4503599627370495)
# Below this, 1 - uniform is so small that its logarithm is a series.
NEAR_ONE = tl.constexpr(0.01)
# By how much noise in float32 may be off, with a score that it is added to: a bound, far above what it is.
OFF, OFF_OF_SCORE = tl.constexpr(5e-4), tl.constexpr(5e-6)


@triton.jit
def uniform_bits(token, key):
    """int64 of 52 bits, of tokens in a row with this key, as in lp/sampling/noise.py (splitmix64)."""
    bits = (token + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key.to(tl.uint64, bitcast=True)
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return ((bits ^ (bits >> 31)) >> 12).to(tl.int64)


@triton.jit
def noise_of(token, key):
    """float32, the noise of tokens in a row with this key, by logarithms in float64."""
    uniform = (uniform_bits(token, key).to(tl.float64) + 0.5) * STEP
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def nearly_noise_of(token, key):
    """The same to within OFF, by logarithms in float32: many GPUs do float64 at a sixty-fourth of that speed."""
    bits = uniform_bits(token, key)
    uniform = (bits.to(tl.float32) + 0.5) * STEP
    rest = ((bits ^ LAST).to(tl.float32) + 0.5) * STEP
    near_one = rest * (1.0 + rest * (0.5 + rest * 0.33333333))
    return -tl.log(tl.where(rest < NEAR_ONE, near_one, -tl.log(uniform)))


@triton.jit
def best_of_chunks(
    scores, choices, words, floats, values, tokens, row_stride, num_tokens, MOST: tl.constexpr, BLOCK: tl.constexpr
):
    """Programs [R, C]. values, tokens: [R, MOST, C], the best of each chunk, equals in the order of their ids.

    A NaN makes a chunk's first value NaN.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    count = tl.load(words + row * 8 + 2)
    if count == 0:
        return
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    is_token = token < num_tokens
    score = tl.load(scores + row.to(tl.int64) * row_stride + token, mask=is_token, other=float("-inf"))
    score = tl.div_rn(score, tl.load(floats + row * 8 + 4))
    is_nan = tl.max((is_token & (score != score)).to(tl.int32), axis=0) > 0
    score = tl.where(score == score, score, float("-inf"))
    num_chunks = tl.num_programs(1)
    at = row * num_chunks * MOST + chunk
    is_drawn = tl.load(words + row * 8 + 3) != 0
    key = tl.load(choices + row * 4)
    nearly = score
    if is_drawn:
        nearly = score + nearly_noise_of(token, key)
    for k in range(count):
        best = tl.max(nearly, axis=0)
        first = tl.min(tl.where(is_token & (nearly == best), token, 0x7FFFFFFF), axis=0)
        if is_drawn & (best > float("-inf")):
            # The noise of those that may be the best is computed in full, one after the other; mostly it is one.
            rest, highest = nearly, best
            best = tl.full([], float("-inf"), tl.float32)
            first = tl.full([], 0x7FFFFFFF, tl.int32)
            while (highest > float("-inf")) & (highest >= best - (tl.abs(highest) * OFF_OF_SCORE + OFF) * 2):
                one = tl.min(tl.where(is_token & (rest == highest), token, 0x7FFFFFFF), axis=0)
                value = tl.max(tl.where(token == one, score, float("-inf")), axis=0) + noise_of(one, key)
                is_better = (value > best) | ((value == best) & (one < first))
                first = tl.where(is_better, one, first)
                best = tl.where(is_better, value, best)
                rest = tl.where(token == one, float("-inf"), rest)
                highest = tl.max(rest, axis=0)
        tl.store(values + at + k * num_chunks, tl.where(is_nan & (k == 0), float("nan"), best))
        tl.store(tokens + at + k * num_chunks, first)
        is_token = is_token & (token != first)
        nearly = tl.where(token == first, float("-inf"), nearly)


@triton.jit
def best_of_rows(values, tokens, words, out, num_chunks, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """Programs [R]. values, tokens: [R, MOST, C]. out: int64 [R, 1 + MOST], 1 for a decided row, then the tokens; -1 in
    rows with a NaN.
    """
    row = tl.program_id(0)
    count = tl.load(words + row * 8 + 2)
    if count == 0:
        return
    n = tl.arange(0, BLOCK)
    is_found = n < count * num_chunks
    value = tl.load(values + row * MOST * num_chunks + n, mask=is_found, other=float("-inf"))
    token = tl.load(tokens + row * MOST * num_chunks + n, mask=is_found, other=0x7FFFFFFF)
    is_nan = tl.max((value != value).to(tl.int32), axis=0) > 0
    value = tl.where(value == value, value, float("-inf"))
    tl.store(out + row * (MOST + 1), 1)
    for k in range(count):
        best = tl.max(value, axis=0)
        first = tl.min(tl.where(value == best, token, 0x7FFFFFFF), axis=0)
        tl.store(out + row * (MOST + 1) + 1 + k, tl.where(is_nan, -1, first).to(tl.int64))
        value = tl.where(token == first, float("-inf"), value)
        token = tl.where(token == first, 0x7FFFFFFF, token)


@triton.jit
def sums_of_chunks(scores, words, floats, sums, row_stride, num_tokens, BLOCK: tl.constexpr):
    """Programs [R, C]. sums: [R, C, 2], the largest score of a chunk after the temperature, and the sum of exponentials
    of what the others are below it. Only top-p without top-k needs them.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    count = tl.load(words + row * 8 + 2)
    top_k = tl.load(words + row * 8 + 7)
    if (count == 0) | (top_k > 0) | (tl.load(floats + row * 8 + 5) >= 1):
        return
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row.to(tl.int64) * row_stride + token, mask=token < num_tokens, other=float("-inf"))
    score = tl.div_rn(score, tl.load(floats + row * 8 + 4))
    most = tl.max(score, axis=0)
    base = tl.where(most == float("-inf"), 0.0, most)
    at = (row * tl.num_programs(1) + chunk) * 2
    tl.store(sums + at, most)
    tl.store(sums + at + 1, tl.sum(tl.exp(score - base), axis=0))


@triton.jit
def best_truncated(
    values, tokens, sums, choices, words, floats, out, num_chunks, rounding, far,
    MOST: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs [R]. values, tokens: [R, N], the row's best. out: int64 [R, 1 + MOST], whether the row is decided, then
    its best tokens; -1 in rows with a NaN. It does what `Shortlist` does, and leaves no fewer rows undecided.
    """
    row = tl.program_id(0)
    count = tl.load(words + row * 8 + 2)
    if count == 0:
        return
    temperature = tl.load(floats + row * 8 + 4)
    top_p = tl.load(floats + row * 8 + 5)
    min_p = tl.load(floats + row * 8 + 6)
    top_k = tl.load(words + row * 8 + 7)
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
    if top_k > 0:
        as_good = tl.sum((left[None, :] >= left[:, None]).to(tl.int32), axis=1)
        last = tl.max(tl.where(as_good >= top_k, left, float("-inf")), axis=0)
        left = tl.where(left < last, float("-inf"), left)
        is_all = (n >= 0) & (tl.max((is_known & (left == float("-inf"))).to(tl.int32), axis=0) > 0)
    if top_p < 1:
        shares = tl.exp(left - best_score)
        whole = tl.sum(shares, axis=0)
        if top_k == 0:
            c = tl.arange(0, BLOCK)
            is_chunk = c < num_chunks
            most = tl.load(sums + (row * num_chunks + c) * 2, mask=is_chunk, other=float("-inf"))
            sum_below = tl.load(sums + (row * num_chunks + c) * 2 + 1, mask=is_chunk, other=0.0)
            whole = tl.sum(tl.where(is_chunk, sum_below * tl.exp(most - best_score), 0.0), axis=0)
            shares = tl.exp(score - best_score)
        shares = shares / whole
        better = tl.sum(tl.where(left[None, :] > left[:, None], shares[None, :], 0.0), axis=1)
        with_equals = tl.sum(tl.where(left[None, :] >= left[:, None], shares[None, :], 0.0), axis=1) - shares
        is_kept = better < top_p
        is_near = (tl.abs(better - top_p) < rounding) | (is_kept & (with_equals > top_p - rounding))
        is_near = is_near & is_known
        lowest = tl.min(tl.where(is_near, left, float("inf")), axis=0)
        highest = tl.max(tl.where(is_near, left, float("-inf")), axis=0)
        is_doubtful = (left >= lowest) & (left <= highest)
        left = tl.where(is_kept | is_doubtful, left, float("-inf"))
    if min_p > 0:
        ratio = tl.exp(left - best_score)
        is_doubtful = is_doubtful | (tl.abs(ratio - min_p) < rounding)
        left = tl.where(ratio < min_p, float("-inf"), left)
    is_cut = tl.max((is_known & (left == float("-inf"))).to(tl.int32), axis=0) > 0
    noise = tl.where(tl.load(words + row * 8 + 3) != 0, noise_of(token, tl.load(choices + row * 4)), 0.0)
    order = tl.where(left == float("-inf"), score - far, score + noise)
    is_decided = is_cut & (tl.min(is_all.to(tl.int32), axis=0) > 0)
    for k in range(count):
        best = tl.max(order, axis=0)
        first = tl.min(tl.where(order == best, token, 0x7FFFFFFF), axis=0)
        is_first = token == first
        is_decided = is_decided & ((k > 0) | (tl.max((is_first & is_doubtful).to(tl.int32), axis=0) == 0))
        tl.store(out + row * (MOST + 1) + 1 + k, tl.where(is_nan, -1, first).to(tl.int64))
        order = tl.where(is_first, float("-inf"), order)
    tl.store(out + row * (MOST + 1), (is_decided | is_nan).to(tl.int64))


@triton.jit
def penalise(scores, words, floats, row_stride, HEADER: tl.constexpr, BLOCK: tl.constexpr):
    """Programs [rows that are changed, blocks of touched tokens]. Changes scores in place. words, floats: one array, as
    lp/sampling/penalties.py lays it out.
    """
    header = words + tl.program_id(0) * HEADER
    num_touched = tl.load(header + 2)
    if tl.program_id(1) * BLOCK >= num_touched:
        return
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_listed = n < num_touched
    at = tl.load(header + 1) + n * 4
    token = tl.load(words + at, mask=is_listed, other=0)
    count = tl.load(words + at + 1, mask=is_listed, other=0)
    flag = tl.load(words + at + 2, mask=is_listed, other=0)
    bias = tl.load(floats + at + 3, mask=is_listed, other=0.0)
    path = words + tl.load(header + 4)
    num_below = tl.load(header + 5)
    in_path = count * 0
    for one in range(num_below):
        in_path += (token == tl.load(path + one)).to(tl.int32)
    is_banned = n < 0
    for one in range(tl.load(header + 6)):
        is_banned = is_banned | (token == tl.load(path + num_below + one))
    is_banned = is_banned | (((flag & 2) != 0) & (tl.load(header + 7) > 0))
    at_score = scores + tl.load(header).to(tl.int64) * row_stride + token
    score = tl.load(at_score, mask=is_listed, other=0.0) + bias
    penalty = tl.load((floats + tl.program_id(0) * HEADER) + 8)
    is_seen = ((flag & 1) != 0) | (in_path > 0)
    score = tl.where(is_seen, tl.where(score < 0, score * penalty, tl.div_rn(score, penalty)), score)
    count = count + in_path
    score = score - tl.load(floats + tl.load(header + 3) + count)  # of the host, as a product may be rounded otherwise
    score = score - tl.where(count > 0, tl.load((floats + tl.program_id(0) * HEADER) + 9), 0.0)
    tl.store(at_score, tl.where(is_banned, float("-inf"), score), mask=is_listed)
