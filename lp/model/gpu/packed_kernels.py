"""Kernels that read quantised weights as they are packed: products, and rows of them. Import this only where Triton is.

A program decodes 64 inputs of some outputs at a time: two groups of 32, whose codes of 4 bits share their bytes.

R rows, K inputs, N outputs, S shares of the inputs
"""

import triton
import triton.language as tl

from lp.model.gpu.expert_kernels import load_pairs

# KIND, how the value of a code is found: an integer, a floating-point number of few bits, or an entry of a table.
INTEGER, FLOAT, TABLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# The bits of 2 ** 23 in float32, whose last bits are those of a small integer that is added to it.
TWO_TO_23 = tl.constexpr(0x4B000000)


@triton.jit
def _float(scales):
    """Scales as float32. uint8: exponents of powers of two, 0 being that of the largest number that is subnormal."""
    if scales.dtype == tl.uint8:
        exponents = scales.to(tl.int32)
        return tl.where(exponents == 0, 1 << 22, exponents << 23).to(tl.float32, bitcast=True)
    else:
        return scales.to(tl.float32)


@triton.jit
def _decode(
    codes, upper, scales, steps, minima, minimum_steps, codebook, n, is_there, group, plane_stride,
    BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr, FACTOR: tl.constexpr, SHIFT: tl.constexpr,
    SPAN: tl.constexpr, STEP_GROUP: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """float32 [n, 32]: the numbers of a group of inputs for the outputs `n`.

    codes: int32 [n, 32], for codes of 5 and 6 bits the lower 4 of them. is_there: whether the group and the output are.
    """
    k = tl.arange(0, 32)
    if BITS == 5 or BITS == 6:
        for bit in tl.static_range(BITS - 4):  # pyright: ignore[reportGeneralTypeIssues]
            words = tl.load(upper + (group * (BITS - 4) + bit) * plane_stride + n, mask=is_there, other=0)
            codes = codes | (((words[:, None] >> k[None, :]) & 1) << (4 + bit))
    if KIND == INTEGER:
        numbers = (codes | TWO_TO_23).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)
    elif KIND == FLOAT:  # its bits are those of a float16 with a smaller exponent
        sign = codes >> (BITS - 1)
        low = (codes ^ (sign << (BITS - 1))) << SHIFT
        numbers = (low | (sign << 15)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        numbers = tl.load(codebook + codes)
    span = 0
    if SPAN > 0:
        span = group // SPAN
    scale = _float(tl.load(scales + span * plane_stride + n, mask=is_there, other=0)) * FACTOR
    if STEP_GROUP == 32:
        scale = scale * tl.load(steps + group * plane_stride + n, mask=is_there, other=0).to(tl.float32)
    if STEP_GROUP == 16:
        at = steps + group * 2 * plane_stride + n
        first = scale * tl.load(at, mask=is_there, other=0).to(tl.float32)
        second = scale * tl.load(at + plane_stride, mask=is_there, other=0).to(tl.float32)
        numbers = numbers * tl.where(k[None, :] < 16, first[:, None], second[:, None])
    else:
        numbers = numbers * scale[:, None]
    if HAS_MINIMA:
        minimum = _float(tl.load(minima + span * plane_stride + n, mask=is_there, other=0))
        if HAS_MINIMUM_STEPS:
            step = tl.load(minimum_steps + group * plane_stride + n, mask=is_there, other=0)
            minimum = minimum * step.to(tl.float32)
        numbers = numbers - minimum[:, None]
    return numbers


@triton.jit
def _load_codes(
    codes, n, is_output, block, num_groups, plane_stride, BITS: tl.constexpr,
    MAY_BE_ODD: tl.constexpr = True,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """int32 [n, 32] twice: the codes of both groups of a block of 64 inputs, or the lower 4 bits of them.

    MAY_BE_ODD: whether the last block may have one group.
    """
    k = tl.arange(0, 32)
    at = codes + n[:, None] * 32 + k[None, :]
    size = tl.cast(plane_stride, tl.int64) * 32
    if BITS == 8:
        first = tl.load(at + size * (block * 2), mask=is_output[:, None], other=0).to(tl.int32)
        is_there = is_output
        if MAY_BE_ODD:
            is_there = is_there & (block * 2 + 1 < num_groups)
        second = tl.load(at + size * (block * 2 + 1), mask=is_there[:, None], other=0).to(tl.int32)
    else:
        pairs = tl.load(at + size * block, mask=is_output[:, None], other=0).to(tl.int32)
        first = pairs & 15
        second = pairs >> 4
    return first, second


@triton.jit
def _add_block(
    sums, rows, is_row, block, num_groups, codes, upper, scales, steps, minima, minimum_steps, codebook, n, is_output,
    plane_stride, MAY_BE_ODD: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    FACTOR: tl.constexpr, SHIFT: tl.constexpr, SPAN: tl.constexpr, STEP_GROUP: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """Adds the products of a block of 64 inputs to `sums` [n, M]. rows: pointers [M, 32] to their first inputs."""
    number = rows.dtype.element_ty
    first, second = _load_codes(codes, n, is_output, block, num_groups, plane_stride, BITS, MAY_BE_ODD)
    weight = _decode(
        first, upper, scales, steps, minima, minimum_steps, codebook, n, is_output, block * 2, plane_stride,
        BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP, HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    of_rows = tl.load(rows + block * 64, mask=is_row[:, None], other=0.0)
    sums = tl.dot(weight.to(number), tl.trans(of_rows), sums, input_precision="ieee")
    is_there, is_number = is_output, is_row
    if MAY_BE_ODD:
        is_there = is_there & (block * 2 + 1 < num_groups)
        is_number = is_number & (block * 2 + 1 < num_groups)
    weight = _decode(
        second, upper, scales, steps, minima, minimum_steps, codebook, n, is_there, block * 2 + 1, plane_stride,
        BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP, HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    of_rows = tl.load(rows + block * 64 + 32, mask=is_number[:, None], other=0.0)
    return tl.dot(weight.to(number), tl.trans(of_rows), sums, input_precision="ieee")


@triton.jit(do_not_specialize=["num_rows", "has_bias"])
def multiply_packed(
    x, codes, upper, scales, steps, minima, minimum_steps, codebook, bias, out, parts, counters, num_rows, num_inputs,
    num_outputs, num_blocks, row_stride, plane_stride, has_bias, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    UNROLL: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr, FACTOR: tl.constexpr,
    SHIFT: tl.constexpr, SPAN: tl.constexpr, STEP_GROUP: tl.constexpr, HAS_MINIMA: tl.constexpr,
    HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of outputs, tiles of rows, S]. out [R, N] = x [R, K] times a packed weight + bias.

    num_blocks: of 64 inputs that a program has, of which UNROLL are in one turn; 2 is for weights whose blocks are even
    in number. The other arguments are as in multiply_in_splits. The weight is the left factor, and rows are the right
    one, so that for any number of rows the same instructions multiply them; sums go from the first input of a share to
    its last, and from the first share to the last.
    """
    column, split, num_splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    m, n = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, 32)
    is_row, is_output = m < num_rows, n < num_outputs
    num_groups = num_inputs // 32
    rows = x + m[:, None].to(tl.int64) * row_stride + k[None, :]
    sums = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
    last = tl.minimum((split + 1) * num_blocks, (num_groups + 1) // 2)
    for begin in range(split * num_blocks, last, UNROLL):
        for number in tl.static_range(UNROLL):  # pyright: ignore[reportGeneralTypeIssues]
            sums = _add_block(
                sums, rows, is_row, begin + number, num_groups, codes, upper, scales, steps, minima, minimum_steps,
                codebook, n, is_output, plane_stride, UNROLL == 1, BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP,
                HAS_MINIMA, HAS_MINIMUM_STEPS,
            )  # fmt: skip
    is_last = True
    if num_splits > 1:
        tile = tl.program_id(1) * tl.num_programs(0) + column
        part = parts + tile.to(tl.int64) * num_splits * (BLOCK_M * BLOCK_N)
        part += tl.arange(0, BLOCK_M)[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        tl.store(part + split * (BLOCK_M * BLOCK_N), sums, mask=is_row[None, :])
        tl.debug_barrier()  # all threads have stored before one of them signals other programs
        is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == num_splits - 1
        if is_last:
            sums = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
            for one in tl.range(0, num_splits, loop_unroll_factor=4):  # pyright: ignore[reportGeneralTypeIssues]
                sums += tl.load(part + one * (BLOCK_M * BLOCK_N), mask=is_row[None, :], other=0.0)
            tl.store(counters + tile, 0)
    if is_last:
        if has_bias != 0:
            sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
        at = m[None, :].to(tl.int64) * num_outputs + n[:, None]
        tl.store(out + at, sums, mask=is_row[None, :] & is_output[:, None])


@triton.jit
def multiply_packed_experts(
    x, codes, upper, scales, steps, minima, minimum_steps, codebook, bias, out, pairs, expert_of, begins, ends,
    row_stride, choice_stride, plane_stride, C: tl.constexpr, E: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    ZERO: tl.constexpr, FACTOR: tl.constexpr, SHIFT: tl.constexpr, SPAN: tl.constexpr, STEP_GROUP: tl.constexpr,
    HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """As multiply_experts in expert_kernels.py, with a packed weight of all experts, whose outputs [E * N] lie one
    expert's behind the other's.
    """
    tile = tl.program_id(0)
    expert = tl.load(expert_of + tile)
    if expert < E:
        pair, is_pair = load_pairs(pairs, begins, ends, tile, BLOCK_M)
        own = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_output, n = own < N, expert * N + own
        k = tl.arange(0, 32)
        rows = x + ((pair // C) * row_stride + (pair % C) * choice_stride)[:, None] + k[None, :]
        sums = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
        for block in range(0, (K // 32 + 1) // 2):
            sums = _add_block(
                sums, rows, is_pair, block, K // 32, codes, upper, scales, steps, minima, minimum_steps, codebook, n,
                is_output, plane_stride, K % 64 != 0, BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP, HAS_MINIMA,
                HAS_MINIMUM_STEPS,
            )  # fmt: skip
        if HAS_BIAS:
            sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
        tl.store(out + pair[None, :] * N + own[:, None], sums, mask=is_pair[None, :] & is_output[:, None])


@triton.jit(do_not_specialize=["first_output", "num_rows"])
def unpack(
    index, codes, upper, scales, steps, minima, minimum_steps, codebook, out, first_output, num_rows, num_inputs,
    plane_stride, HAS_INDEX: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    ZERO: tl.constexpr, FACTOR: tl.constexpr, SHIFT: tl.constexpr, SPAN: tl.constexpr, STEP_GROUP: tl.constexpr,
    HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of rows, blocks of 64 inputs]. out [R, K]: the numbers of the outputs that index, int64 [R],
    names, or of those from `first_output` on.
    """
    r, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, 32)
    block = tl.program_id(1)
    is_row = r < num_rows
    if HAS_INDEX:
        n = tl.load(index + r, mask=is_row, other=0).to(tl.int32)
    else:
        n = first_output + r
    num_groups = num_inputs // 32
    first, second = _load_codes(codes, n, is_row, block, num_groups, plane_stride, BITS)
    at = out + r[:, None].to(tl.int64) * num_inputs + block * 64 + k[None, :]
    numbers = _decode(
        first, upper, scales, steps, minima, minimum_steps, codebook, n, is_row, block * 2, plane_stride,
        BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP, HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    tl.store(at, numbers, mask=is_row[:, None])
    is_there = is_row & (block * 2 + 1 < num_groups)
    numbers = _decode(
        second, upper, scales, steps, minima, minimum_steps, codebook, n, is_there, block * 2 + 1, plane_stride,
        BITS, KIND, ZERO, FACTOR, SHIFT, SPAN, STEP_GROUP, HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    tl.store(at + 32, numbers, mask=is_there[:, None])
