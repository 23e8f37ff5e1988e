"""Kernels that read quantised weights as they are packed: products, and rows of them. Import this only where Triton is.

A program decodes 64 inputs of some outputs at a time: two groups of 32, whose codes of 4 bits share their bytes. All
that it loads for a block is at least 4 bytes a thread, so that Triton copies it ahead of the blocks before. Nothing but
loads and constants may go into the left factor of a product: then Triton loads codes in the order of that factor's
threads, and otherwise it moves all numbers through shared memory once more, which takes twice the time.

R rows, K inputs, N outputs, S shares of the inputs
"""

# Triton makes constants of numbers, texts and dtypes, which its annotations do not say.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

import triton
import triton.language as tl

from lp.model.gpu.expert_kernels import load_pairs
from lp.model.gpu.packed_assembly import decode_bytes, decode_pairs, write_ones

# KIND, how the value of a code is found: an integer, a floating-point number of few bits, or an entry of a table.
INTEGER, FLOAT, TABLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# 2 ** 23, the last bits of whose mantissa are those of a small integer that is added to it, and its bits.
TWO_TO_23, ITS_BITS = tl.constexpr(8388608.0), tl.constexpr(0x4B000000)


@triton.jit
def _integers(codes, ZERO: tl.constexpr):
    """float32: codes, int32 of at most 23 bits, less ZERO."""
    return (codes | ITS_BITS).to(tl.float32, bitcast=True) - (TWO_TO_23 + ZERO)


@triton.jit
def _floats(bits, FACTOR: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr):
    """float32: floating-point numbers of BITS bits, which stand where float32 has them, below copies of their sign."""
    mask: tl.constexpr = -(1 << 31) | (((1 << (BITS - 1)) - 1) << (32 - BITS - SHIFT))
    return (bits & mask).to(tl.float32, bitcast=True) * FACTOR


@triton.jit
def _load_values(
    codes, upper, codebook, n, is_output, block, place, num_groups, plane_stride, NUMBER: tl.constexpr,
    MAY_BE_ODD: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr, FACTOR: tl.constexpr,
    SHIFT: tl.constexpr, HAS_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """NUMBER [n, 32] three times: the values of the codes of both groups of a block, and ones.

    MAY_BE_ODD: whether the last block may have one group. HAS_ASSEMBLY: whether integers become numbers of 16 bits by
    PTX of this project's, which must know the block's place among those that share bytes of upper bits.
    """
    at = n[:, None] * 32 + tl.arange(0, 32)[None, :]
    size = tl.cast(plane_stride, tl.int64) * 32
    ones = tl.full(at.shape, 1.0, tl.float32).to(NUMBER)
    if BITS == 8:
        is_there = is_output
        if MAY_BE_ODD:
            is_there = is_there & (block * 2 + 1 < num_groups)
        first = tl.load(codes + at + size * (block * 2), mask=is_output[:, None], other=0)
        second = tl.load(codes + at + size * (block * 2 + 1), mask=is_there[:, None], other=0)
        if HAS_ASSEMBLY:
            text: tl.constexpr = decode_bytes(ZERO, NUMBER.is_bf16())
            values0 = tl.inline_asm_elementwise(text, "=r,=r,r", [first], dtype=tl.int16, is_pure=True, pack=4)
            values1 = tl.inline_asm_elementwise(text, "=r,=r,r", [second], dtype=tl.int16, is_pure=True, pack=4)
            ones = _ones(first, NUMBER)
        elif KIND == FLOAT:
            values0 = _floats(first.to(tl.int8, bitcast=True).to(tl.int32) << (24 - SHIFT), FACTOR, BITS, SHIFT)
            values1 = _floats(second.to(tl.int8, bitcast=True).to(tl.int32) << (24 - SHIFT), FACTOR, BITS, SHIFT)
        else:
            values0, values1 = _integers(first.to(tl.int32), ZERO), _integers(second.to(tl.int32), ZERO)
    else:
        pairs = tl.load(codes + at + size * block, mask=is_output[:, None], other=0)
        num_bits: tl.constexpr = BITS - 4
        own = pairs
        if num_bits > 0:
            own = tl.load(upper + at + size * (block // (4 // num_bits)), mask=is_output[:, None], other=0)
        if HAS_ASSEMBLY:
            text: tl.constexpr = decode_pairs(BITS, ZERO, NUMBER.is_bf16(), place)
            values0, values1 = tl.inline_asm_elementwise(
                text, "=r,=r,=r,=r,r,r", [pairs, own], dtype=(tl.int16, tl.int16), is_pure=True, pack=4
            )
            ones = _ones(pairs, NUMBER)
        else:
            pairs = pairs.to(tl.int32)
            first, second = pairs & 15, pairs >> 4
            if num_bits > 0:
                mask: tl.constexpr = (1 << num_bits) - 1
                bits = own.to(tl.int32) >> (block % (4 // num_bits) * (2 * num_bits))
                first, second = first | (bits & mask) << 4, second | (bits >> num_bits & mask) << 4
            if KIND == FLOAT:
                values0 = _floats((pairs << 28) >> SHIFT, FACTOR, BITS, SHIFT)
                values1 = _floats((pairs << 24) >> SHIFT, FACTOR, BITS, SHIFT)
            elif KIND == TABLE:
                values0, values1 = tl.load(codebook + first), tl.load(codebook + second)
            else:
                values0, values1 = _integers(first, ZERO), _integers(second, ZERO)
    if HAS_ASSEMBLY:
        return values0.to(NUMBER, bitcast=True), values1.to(NUMBER, bitcast=True), ones
    else:
        return values0.to(NUMBER), values1.to(NUMBER), ones


@triton.jit
def _ones(codes, NUMBER: tl.constexpr):
    """NUMBER: ones in the places of codes, by PTX that takes the codes along, so that both have one layout."""
    text: tl.constexpr = write_ones(NUMBER.is_bf16())
    return tl.inline_asm_elementwise(text, "=r,=r,r", [codes], dtype=tl.int16, is_pure=True, pack=4).to(
        NUMBER, bitcast=True
    )


@triton.jit
def _load_scale(scales, n, is_there, span, plane_stride, HALF: tl.constexpr):
    """float32 [n]: the scales, or the minima, of the span of inputs with this number.

    HALF: the dtype of the two numbers that share a word of the plane; float32 if each has a word.
    """
    if HALF.is_fp32():
        return tl.load(scales + span * plane_stride + n, mask=is_there, other=0.0)
    else:
        words = tl.load(scales + (span // 2) * plane_stride + n, mask=is_there, other=0)
        return _half(words >> (span % 2 * 16), HALF)


@triton.jit
def _half(words, HALF: tl.constexpr):
    """The number in the lower half of words, as float32."""
    if HALF.is_bf16():
        return (words << 16).to(tl.float32, bitcast=True)
    else:
        return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _load_scales(
    scales, n, is_output, block, num_groups, plane_stride, SPAN: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """What _load_scale gives for both groups of a block. SPAN: groups that share a scale, or 0 if all do."""
    if SPAN == 1 and not HALF.is_fp32():
        words = tl.load(scales + block * plane_stride + n, mask=is_output, other=0)
        return _half(words, HALF), _half(words >> 16, HALF)
    elif SPAN % 2 == 0:
        span = 0
        if SPAN > 0:
            span = block * 2 // SPAN
        both = _load_scale(scales, n, is_output, span, plane_stride, HALF)
        return both, both
    else:
        is_there = is_output & (block * 2 + 1 < num_groups)
        first = _load_scale(scales, n, is_output, block * 2 // SPAN, plane_stride, HALF)
        return first, _load_scale(scales, n, is_there, (block * 2 + 1) // SPAN, plane_stride, HALF)


@triton.jit
def _byte(words, number: tl.constexpr, IS_SIGNED: tl.constexpr):
    """float32: a byte of each word."""
    if IS_SIGNED:
        return _integers((words >> (8 * number) & 255) ^ 128, 128)
    else:
        return _integers(words >> (8 * number) & 255, 0)


@triton.jit
def _load_steps(
    scales, minima, steps, n, is_output, block, num_groups, plane_stride, SPAN: tl.constexpr, HALF: tl.constexpr,
    STEP_GROUP: tl.constexpr, IS_SIGNED: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """float32 [n] six times: by what values are multiplied in the first and the last 16 inputs of both groups of a
    block, and what is then subtracted in each group.
    """
    scale0, scale1 = _load_scales(scales, n, is_output, block, num_groups, plane_stride, SPAN, HALF)
    minimum0, minimum1, words = scale0, scale1, n
    if HAS_MINIMA:
        minimum0, minimum1 = _load_scales(minima, n, is_output, block, num_groups, plane_stride, SPAN, HALF)
    first0, last0, first1, last1 = scale0, scale0, scale1, scale1
    if STEP_GROUP > 0:
        words = tl.load(steps + block * plane_stride + n, mask=is_output, other=0)
    elif HAS_MINIMUM_STEPS:
        words = tl.load(steps + (block // 2) * plane_stride + n, mask=is_output, other=0) >> (block % 2 * 16)
    if STEP_GROUP == 16:
        first0, last0 = scale0 * _byte(words, 0, IS_SIGNED), scale0 * _byte(words, 1, IS_SIGNED)
        first1, last1 = scale1 * _byte(words, 2, IS_SIGNED), scale1 * _byte(words, 3, IS_SIGNED)
    if STEP_GROUP == 32:
        first0, first1 = scale0 * _byte(words, 0, IS_SIGNED), scale1 * _byte(words, 1, IS_SIGNED)
        last0, last1 = first0, first1
    if HAS_MINIMUM_STEPS:
        begin: tl.constexpr = 2 if STEP_GROUP > 0 else 0
        minimum0 = minimum0 * _byte(words, begin, False)
        minimum1 = minimum1 * _byte(words, begin + 1, False)
    return first0, last0, first1, last1, minimum0, minimum1


@triton.jit
def _scaled(values, first, last, minimum, STEP_GROUP: tl.constexpr, HAS_MINIMA: tl.constexpr):
    """The numbers [n, 32] of a group of inputs."""
    if STEP_GROUP == 16:
        numbers = values * tl.where((tl.arange(0, 32) < 16)[None, :], first[:, None], last[:, None])
    else:
        numbers = values * first[:, None]
    if HAS_MINIMA:
        numbers = numbers - minimum[:, None]
    return numbers


@triton.jit
def _add_scaled(sums, values, rows, is_there, scale):
    """Adds the products of values [n, 32] with the inputs that are there, scaled by `scale` [n], to `sums`."""
    of_rows = tl.load(rows, mask=is_there, other=0.0)
    return sums + tl.dot(values, tl.trans(of_rows)) * scale[:, None]


@triton.jit
def _add_block(
    sums, rows, is_row, codes, upper, scales, minima, steps, codebook, n, is_output, block, place, num_groups,
    plane_stride, MAY_BE_ODD: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    FACTOR: tl.constexpr, SHIFT: tl.constexpr, HAS_ASSEMBLY: tl.constexpr, SCALES_SUMS: tl.constexpr,
    SPAN: tl.constexpr, HALF: tl.constexpr, STEP_GROUP: tl.constexpr, IS_SIGNED: tl.constexpr,
    HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
):  # fmt: skip
    """Adds the products of a block of 64 inputs to `sums` [n, M]. rows: pointers [M, 1] to their first inputs.

    SCALES_SUMS: the values of codes, which are exact in 16 bits, are multiplied, and their sums of 16 or 32 inputs are
    scaled in float32; otherwise the numbers themselves are multiplied, which with many rows takes less arithmetic.
    """
    number: tl.constexpr = rows.dtype.element_ty
    k = tl.arange(0, 32)
    rows += block * 64 + k[None, :]
    is_number = is_row
    if MAY_BE_ODD:
        is_number = is_number & (block * 2 + 1 < num_groups)
    values0, values1, ones = _load_values(
        codes, upper, codebook, n, is_output, block, place, num_groups, plane_stride,
        number if SCALES_SUMS else tl.float32, MAY_BE_ODD, BITS, KIND, ZERO, FACTOR, SHIFT, HAS_ASSEMBLY,
    )  # fmt: skip
    first0, last0, first1, last1, minimum0, minimum1 = _load_steps(
        scales, minima, steps, n, is_output, block, num_groups, plane_stride, SPAN, HALF, STEP_GROUP, IS_SIGNED,
        HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    if not SCALES_SUMS:
        of_rows = tl.load(rows, mask=is_row[:, None], other=0.0)
        numbers = _scaled(values0, first0, last0, minimum0, STEP_GROUP, HAS_MINIMA).to(number)
        sums = tl.dot(numbers, tl.trans(of_rows), sums, input_precision="ieee")
        of_rows = tl.load(rows + 32, mask=is_number[:, None], other=0.0)
        numbers = _scaled(values1, first1, last1, minimum1, STEP_GROUP, HAS_MINIMA).to(number)
        sums = tl.dot(numbers, tl.trans(of_rows), sums, input_precision="ieee")
    elif STEP_GROUP == 16:
        is_first, is_last = (k < 16)[None, :], (k >= 16)[None, :]
        sums = _add_scaled(sums, values0, rows, is_row[:, None] & is_first, first0)
        sums = _add_scaled(sums, values0, rows, is_row[:, None] & is_last, last0)
        sums = _add_scaled(sums, values1, rows + 32, is_number[:, None] & is_first, first1)
        sums = _add_scaled(sums, values1, rows + 32, is_number[:, None] & is_last, last1)
    else:
        of_rows = tl.trans(tl.load(rows, mask=is_row[:, None], other=0.0))
        sums += tl.dot(values0, of_rows) * first0[:, None]
        if HAS_MINIMA:
            sums -= tl.dot(ones, of_rows) * minimum0[:, None]
        of_rows = tl.trans(tl.load(rows + 32, mask=is_number[:, None], other=0.0))
        sums += tl.dot(values1, of_rows) * first1[:, None]
        if HAS_MINIMA:
            sums -= tl.dot(ones, of_rows) * minimum1[:, None]
    return sums


@triton.jit
def _multiply_blocks(
    rows, is_row, codes, upper, scales, minima, steps, codebook, n, is_output, begin, end, num_groups, plane_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MAY_BE_ODD: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    ZERO: tl.constexpr, FACTOR: tl.constexpr, SHIFT: tl.constexpr, HAS_ASSEMBLY: tl.constexpr,
    SCALES_SUMS: tl.constexpr, SPAN: tl.constexpr, HALF: tl.constexpr, STEP_GROUP: tl.constexpr,
    IS_SIGNED: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Returns the sums [n, M] of the products of the blocks [begin, end), UNROLL of them in a turn.

    MAY_BE_ODD: whether the last turn may have fewer blocks, or the last block one group of inputs.
    """
    sums = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
    for first in range(begin, end, UNROLL):
        for place in tl.static_range(UNROLL):  # pyright: ignore[reportGeneralTypeIssues]
            block = first + place
            is_there, is_number = is_output, is_row
            if MAY_BE_ODD and place > 0:
                is_there, is_number = is_there & (block * 2 < num_groups), is_number & (block * 2 < num_groups)
            sums = _add_block(
                sums, rows, is_number, codes, upper, scales, minima, steps, codebook, n, is_there, block, place,
                num_groups, plane_stride, MAY_BE_ODD, BITS, KIND, ZERO, FACTOR, SHIFT, HAS_ASSEMBLY, SCALES_SUMS, SPAN,
                HALF, STEP_GROUP, IS_SIGNED, HAS_MINIMA, HAS_MINIMUM_STEPS,
            )  # fmt: skip
    return sums


@triton.jit(do_not_specialize=["num_rows", "has_bias"])
def multiply_packed(
    x, codes, upper, scales, minima, steps, codebook, bias, out, parts, counters, num_rows, num_inputs, num_outputs,
    num_blocks, row_stride, plane_stride, has_bias, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MAY_BE_ODD: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr, FACTOR: tl.constexpr,
    SHIFT: tl.constexpr, HAS_ASSEMBLY: tl.constexpr, SCALES_SUMS: tl.constexpr, SPAN: tl.constexpr, HALF: tl.constexpr,
    STEP_GROUP: tl.constexpr, IS_SIGNED: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of outputs, tiles of rows, S]. out [R, N] = x [R, K] times a packed weight + bias.

    num_blocks: of 64 inputs that a program has, a multiple of UNROLL. The other arguments are as in multiply_in_splits,
    _multiply_blocks and _add_block. The weight is the left factor, and rows are the right one, so that the same
    instructions multiply them for any number of rows; sums go from the first input of a share to its last, and from the
    first share to the last.
    """
    column, split, num_splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    m, n = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = m < num_rows, n < num_outputs
    num_groups = num_inputs // 32
    rows = x + m[:, None].to(tl.int64) * row_stride
    sums = _multiply_blocks(
        rows, is_row, codes, upper, scales, minima, steps, codebook, n, is_output, split * num_blocks,
        tl.minimum((split + 1) * num_blocks, (num_groups + 1) // 2), num_groups, plane_stride, BLOCK_M, BLOCK_N,
        MAY_BE_ODD, BITS, KIND, ZERO, FACTOR, SHIFT, HAS_ASSEMBLY, SCALES_SUMS, SPAN, HALF, STEP_GROUP, IS_SIGNED,
        HAS_MINIMA, HAS_MINIMUM_STEPS, UNROLL,
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
    x, codes, upper, scales, minima, steps, codebook, bias, out, pairs, expert_of, begins, ends, row_stride,
    choice_stride, plane_stride, C: tl.constexpr, E: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
    ZERO: tl.constexpr, FACTOR: tl.constexpr, SHIFT: tl.constexpr, HAS_ASSEMBLY: tl.constexpr,
    SCALES_SUMS: tl.constexpr, SPAN: tl.constexpr, HALF: tl.constexpr, STEP_GROUP: tl.constexpr,
    IS_SIGNED: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """As multiply_experts in expert_kernels.py, with a packed weight of all experts, whose outputs [E * N] lie one
    expert's behind the other's. UNROLL: as in _multiply_blocks.
    """
    tile = tl.program_id(0)
    expert = tl.load(expert_of + tile)
    if expert < E:
        pair, is_pair = load_pairs(pairs, begins, ends, tile, BLOCK_M)
        own = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_output, n = own < N, expert * N + own
        rows = x + ((pair // C) * row_stride + (pair % C) * choice_stride)[:, None]
        may_be_odd: tl.constexpr = K % (64 * UNROLL) != 0
        sums = _multiply_blocks(
            rows, is_pair, codes, upper, scales, minima, steps, codebook, n, is_output, 0, (K // 32 + 1) // 2, K // 32,
            plane_stride, BLOCK_M, BLOCK_N, may_be_odd, BITS, KIND, ZERO, FACTOR, SHIFT, HAS_ASSEMBLY, SCALES_SUMS,
            SPAN, HALF, STEP_GROUP, IS_SIGNED, HAS_MINIMA, HAS_MINIMUM_STEPS, UNROLL,
        )  # fmt: skip
        if HAS_BIAS:
            sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
        tl.store(out + pair[None, :] * N + own[:, None], sums, mask=is_pair[None, :] & is_output[:, None])


@triton.jit(do_not_specialize=["first_output", "num_rows"])
def unpack(
    index, codes, upper, scales, minima, steps, codebook, out, first_output, num_rows, num_inputs, plane_stride,
    HAS_INDEX: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    FACTOR: tl.constexpr, SHIFT: tl.constexpr, SPAN: tl.constexpr, HALF: tl.constexpr, STEP_GROUP: tl.constexpr,
    IS_SIGNED: tl.constexpr, HAS_MINIMA: tl.constexpr, HAS_MINIMUM_STEPS: tl.constexpr,
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
    values0, values1, _ = _load_values(
        codes, upper, codebook, n, is_row, block, 0, num_groups, plane_stride, tl.float32, True, BITS, KIND, ZERO,
        FACTOR, SHIFT, False,
    )  # fmt: skip
    first0, last0, first1, last1, minimum0, minimum1 = _load_steps(
        scales, minima, steps, n, is_row, block, num_groups, plane_stride, SPAN, HALF, STEP_GROUP, IS_SIGNED,
        HAS_MINIMA, HAS_MINIMUM_STEPS,
    )  # fmt: skip
    at = out + r[:, None].to(tl.int64) * num_inputs + block * 64 + k[None, :]
    numbers = _scaled(values0, first0, last0, minimum0, STEP_GROUP, HAS_MINIMA)
    tl.store(at, numbers, mask=is_row[:, None])
    numbers = _scaled(values1, first1, last1, minimum1, STEP_GROUP, HAS_MINIMA)
    tl.store(at + 32, numbers, mask=(is_row & (block * 2 + 1 < num_groups))[:, None])
