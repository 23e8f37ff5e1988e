"""The kernel of products of few rows, whose inputs are split among programs. Import this only where Triton is.

R rows, K inputs, N outputs, S shares of the inputs
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "has_bias"])
def multiply_in_splits(
    x, weight, bias, out, parts, counters, num_rows, num_inputs, num_outputs, share, row_stride, input_stride,
    output_stride, has_bias, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of outputs, tiles of rows, S]. out [R, N] = x [R, K] times weight, whose strides are given, +
    bias.

    share: inputs of a program, a multiple of BLOCK_K. parts: float32 [tiles, S, BLOCK_M, BLOCK_N]. counters: int32
    [tiles], all 0 before and afterwards. The last program of a tile to finish adds up the sums of all of them, from the
    first share to the last, so the result does not depend on which one it is.
    """
    column, split, num_splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    first_row, first_output, first_input = tl.program_id(1) * BLOCK_M, column * BLOCK_N, split * share
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    is_row, is_output = first_row + m < num_rows, first_output + n < num_outputs
    rows = x + first_input + (first_row + m)[:, None] * row_stride + k[None, :]
    weights = weight + first_output.to(tl.int64) * output_stride + first_input.to(tl.int64) * input_stride
    weights = weights + k[:, None].to(tl.int64) * input_stride + n[None, :].to(tl.int64) * output_stride
    sums = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    size = tl.minimum(share, num_inputs - first_input)
    for first in range(0, size, BLOCK_K):
        is_input = first + k < size
        of_rows = tl.load(rows, mask=is_row[:, None] & is_input[None, :], other=0.0)
        of_weight = tl.load(weights, mask=is_input[:, None] & is_output[None, :], other=0.0)
        sums = tl.dot(of_rows, of_weight, sums, input_precision="ieee")
        rows += BLOCK_K
        weights += BLOCK_K * input_stride
    is_last = True
    if num_splits > 1:
        tile = tl.program_id(1) * tl.num_programs(0) + column
        part = parts + tile.to(tl.int64) * num_splits * (BLOCK_M * BLOCK_N) + m[:, None] * BLOCK_N + n[None, :]
        tl.store(part + split * (BLOCK_M * BLOCK_N), sums, mask=is_row[:, None])
        tl.debug_barrier()  # all threads have stored before one of them signals other programs
        is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == num_splits - 1
        if is_last:
            sums = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
            for one in tl.range(0, num_splits, loop_unroll_factor=4):  # pyright: ignore[reportGeneralTypeIssues]
                sums += tl.load(part + one * (BLOCK_M * BLOCK_N), mask=is_row[:, None], other=0.0)
            tl.store(counters + tile, 0)
    if is_last:
        if has_bias != 0:
            sums += tl.load(bias + first_output + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
        at = (first_row + m)[:, None].to(tl.int64) * num_outputs + (first_output + n)[None, :]
        tl.store(out + at, sums, mask=is_row[:, None] & is_output[None, :])
