"""The kernel of products with the weights of experts. Import this only where Triton is.

R rows, C experts for each row, E experts, K inputs, N outputs, T tiles
"""

import triton
import triton.language as tl


@triton.jit
def load_pairs(pairs, begins, ends, tile, BLOCK_M: tl.constexpr):
    """Returns the pairs of a tile, and which of them there are, [M] each."""
    at = tl.load(begins + tile) + tl.arange(0, BLOCK_M)
    is_pair = at < tl.load(ends + tile)
    return tl.load(pairs + at, mask=is_pair, other=0), is_pair


@triton.jit
def multiply_experts(
    x, weight, bias, out, pairs, expert_of, begins, ends, row_stride, choice_stride, expert_stride, input_stride,
    output_stride, C: tl.constexpr, E: tl.constexpr, K: tl.constexpr, N: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Programs [T, tiles of outputs]. out [R, C, N] = x [R, C, K], whose strides are given, times weight [E, K, N], +
    bias [E, N].

    pairs, expert_of, begins, ends: see Tiles in experts.py. Inputs are added in blocks from the first to the last.
    """
    tile = tl.program_id(0)
    expert = tl.load(expert_of + tile)
    if expert < E:
        pair, is_pair = load_pairs(pairs, begins, ends, tile, BLOCK_M)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        is_output = n < N
        inputs = x + (pair // C) * row_stride + (pair % C) * choice_stride
        weights = weight + expert * expert_stride
        sums = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
        for first in range(0, K, BLOCK_K):
            is_input = first + k < K
            rows = tl.load(inputs[:, None] + (first + k)[None, :], mask=is_pair[:, None] & is_input[None, :], other=0.0)
            numbers = tl.load(
                weights + (first + k)[:, None].to(tl.int64) * input_stride + n[None, :].to(tl.int64) * output_stride,
                mask=is_input[:, None] & is_output[None, :], other=0.0,
            )  # fmt: skip
            sums += tl.dot(rows, numbers, input_precision="ieee")
        if HAS_BIAS:
            sums += tl.load(bias + expert * N + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
        tl.store(out + pair[:, None] * N + n[None, :], sums, mask=is_pair[:, None] & is_output[None, :])
