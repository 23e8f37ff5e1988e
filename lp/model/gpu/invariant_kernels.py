"""Kernels with which a row's numbers do not depend on the other rows, nor on how much of its path is cached.

Tiles have one shape whatever the number of rows, and sums one order. Import this only where Triton is.

    R rows, H key/value heads, G query heads for each of them, P tokens of a page,
    K inputs, N outputs of a product
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x, weight, bias, out, num_rows, row_stride, input_stride, output_stride,
    K: tl.constexpr, N: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of rows, tiles of outputs]. out [R, N] = x [R, K] times weight, whose strides are given, + bias.

    Inputs are added in blocks from the first to the last.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    is_row, is_output = m < num_rows, n < N
    sums = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for first in range(0, K, BLOCK_K):
        is_input = first + k < K
        rows = tl.load(
            x + m[:, None] * row_stride + (first + k)[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0
        )
        weights = tl.load(
            weight + (first + k)[:, None].to(tl.int64) * input_stride + n[None, :].to(tl.int64) * output_stride,
            mask=is_input[:, None] & is_output[None, :], other=0.0,
        )  # fmt: skip
        sums += tl.dot(rows, weights, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
    tl.store(out + m[:, None].to(tl.int64) * N + n[None, :], sums, mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def lay_paths(paths, positions, visible, sequence_of, lengths, num_rows, BLOCK: tl.constexpr):
    """Programs [R]. paths: [R, R] int32, for each row its ancestors in the step and itself, by their depth."""
    row = tl.program_id(0)
    length = tl.load(lengths + tl.load(sequence_of + row))
    for first in range(0, num_rows, BLOCK):
        other = first + tl.arange(0, BLOCK)
        is_row = other < num_rows
        is_seen = tl.load(visible + row * num_rows + other, mask=is_row, other=0) != 0
        depth = tl.load(positions + other, mask=is_row, other=0).to(tl.int32) - length
        tl.store(paths + row * num_rows + depth, other, mask=is_row & is_seen & (depth >= 0))


@triton.jit(do_not_specialize=["num_rows", "max_pages"])
def attend_in_order(
    queries, keys, values, sinks, out, slots, positions, paths, sequence_of, block_table, lengths,
    num_rows, max_pages, query_stride, head_stride, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Programs [R, H]. A key's block and its place in it follow from its position, whether it lies in the prefix or in
    the step, and blocks are added from the first to the last. sinks: see `attend`.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    v = tl.arange(0, BLOCK_V)
    n = tl.arange(0, BLOCK_N)
    query_head = head * GROUPS + m
    is_query = (m < GROUPS)[:, None] & (d < HEAD_DIM)[None, :]
    at = row * query_stride + query_head[:, None] * head_stride + d[None, :]
    query = tl.load(queries + at, mask=is_query, other=0.0).to(keys.dtype.element_ty)
    position = tl.load(positions + row).to(tl.int32)
    sequence = tl.load(sequence_of + row)
    length = tl.load(lengths + sequence)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    if HAS_SINKS:
        most = tl.load(sinks + query_head, mask=m < GROUPS, other=0.0).to(tl.float32)
        total = tl.full([BLOCK_M], 1.0, tl.float32)
    result = tl.full([BLOCK_M, BLOCK_V], 0.0, tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position + 1 - WINDOW, 0) // BLOCK_N
    if CHUNK > 0:
        begin = position // CHUNK * CHUNK // BLOCK_N
    for block in range(begin, position // BLOCK_N + 1):
        key_position = block * BLOCK_N + n
        is_cached = key_position < length
        is_key = key_position <= position
        if WINDOW > 0:
            is_key = is_key & (position - key_position < WINDOW)
        if CHUNK > 0:
            is_key = is_key & (key_position // CHUNK == position // CHUNK)
        page = tl.load(block_table + sequence * max_pages + key_position // PAGE, mask=is_cached, other=0)
        other = tl.load(paths + row * num_rows + key_position - length, mask=is_key & (key_position >= length), other=0)
        slot = tl.load(slots + other)
        place = tl.where(is_cached, page.to(tl.int64) * PAGE + key_position % PAGE, slot)
        pointer = (place * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
        is_number = is_key[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(keys + pointer, mask=is_number, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SOFTCAP > 0:
            scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0))
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, axis=1))
        shares = tl.exp(scores - highest[:, None])
        decay = tl.exp(most - highest)
        total = total * decay + tl.sum(shares, axis=1)
        pointer = (place * HEADS + head)[:, None] * VALUE_DIM + v[None, :]
        value = tl.load(values + pointer, mask=is_key[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
        result = result * decay[:, None]
        result += tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        most = highest
    target = row * (HEADS * GROUPS) + query_head
    is_out = (m < GROUPS)[:, None] & (v < VALUE_DIM)[None, :]
    tl.store(out + target[:, None] * VALUE_DIM + v[None, :], result / total[:, None], mask=is_out)
