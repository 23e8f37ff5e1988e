"""Products and lookups of quantised weights, which a GPU's kernels read as they are packed.

With few rows a product takes as long as its weight is read, so one kernel decodes codes in registers. With more rows
than graphs have, it takes as long as the arithmetic: some outputs at a time are unpacked and multiplied by cuBLAS.

R rows, K inputs, N outputs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from lp.model.gpu.cuda_graphs import LADDER
from lp.model.gpu.experts import PAIRS, Tiles
from lp.model.gpu.product import ROWS
from lp.model.gpu.sinks import power_of_two
from lp.model.program.steps import ExpertProduct
from lp.model.quantization.packed import PackedWeight, stored_scale
from lp.model.quantization.weight import GROUP, WeightFormat
from lp.platform import build as kernels

# Inputs that a program decodes at a time.
BLOCK = 2 * GROUP
# Programs among which the work is split, and blocks of inputs that a share has at least: with fewer, its sums cost as
# much as its codes.
MANY_PROGRAMS, LEAST_BLOCKS = 1056, 8
# Outputs of a tile, by which shares are reckoned.
OUTPUTS = 64
# Rows of a tile. Matrix units multiply 8 at least and Triton's tiles have 16; in float32, which has no such units, a
# thread has no registers for more than 32.
LEAST_ROWS, MOST_ROWS, MOST_ROWS_FLOAT32 = 16, 128, 32
# The most rows whose sums are scaled: with more, scaling all sums costs more than scaling all numbers.
MOST_SCALED = 32
# Tiles of a product whose counters are there already.
MOST_TILES = 4096
# The most rows of a product by the kernel that decodes in registers. For more, so many numbers are unpacked at a time.
MOST_DECODED, AT_ONCE = LADDER[-1], 1 << 26
# Rows that one program of a lookup has.
ROWS_OF_LOOKUP, ROWS_OF_UNPACKING = 16, 64
# By how many places an exponent in float32 has more bits than in codes that are floating-point numbers (E2M1 and E4M3),
# by the bits of a code.
SHIFTS = {4: 6, 8: 4}


@dataclass(frozen=True)
class PackedTile:
    """rows, outputs: of one program. scales_sums: whether sums are scaled, instead of all numbers."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int
    scales_sums: bool = False


def tile_of(num_rows: int, itemsize: int) -> PackedTile:
    """The tile for a product of so many rows, each as fast as any that was measured on an H100.

    With two warps Triton takes the matrix instructions that all GPUs have, whose left factor is then four inputs wide,
    as the codes that one instruction loads and decodes.
    """
    rows = min(max(power_of_two(num_rows), LEAST_ROWS), MOST_ROWS_FLOAT32 if itemsize == 4 else MOST_ROWS)
    if itemsize == 4:
        return PackedTile(rows, OUTPUTS, num_warps=4, num_stages=4)
    if rows <= MOST_SCALED:
        return PackedTile(rows, OUTPUTS, num_warps=2, num_stages=4, scales_sums=True)
    if rows < MOST_ROWS:
        return PackedTile(rows, 2 * OUTPUTS, num_warps=8, num_stages=3)
    return PackedTile(rows, OUTPUTS, num_warps=4, num_stages=3)


def num_shares(num_inputs: int, num_outputs: int) -> int:
    """Among how many programs the inputs are split: a power of two, which depends on the weight alone."""
    num_tiles, num_blocks = -(-num_outputs // OUTPUTS), -(-num_inputs // BLOCK)
    most = max(1, min(MANY_PROGRAMS // num_tiles, num_blocks // LEAST_BLOCKS))
    return 1 << (most.bit_length() - 1)


@cache
def constants_of(format: WeightFormat, num_inputs: int) -> dict[str, Any]:
    """The constants of a format's kernels."""
    import triton.language as tl

    from lp.model.gpu.packed_kernels import FLOAT, INTEGER, TABLE

    halves = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
    factor, span = float_factor(format), format.span or num_inputs
    kind = INTEGER if format.codebook is None else TABLE if factor is None else FLOAT
    return {
        "BITS": format.bits, "KIND": kind.value, "ZERO": float(format.zero), "FACTOR": factor or 1.0,
        "SHIFT": SHIFTS[format.bits] if kind == FLOAT else 0,
        "SPAN": 0 if span == num_inputs else span // GROUP, "HALF": halves[stored_scale(format)],
        "STEP_GROUP": 0 if format.step is None else format.group, "IS_SIGNED": format.step == torch.int8,
        "HAS_MINIMA": format.has_minima, "HAS_MINIMUM_STEPS": format.has_minimum_steps,
    }  # fmt: skip


def ways_of(format: WeightFormat, scales_sums: bool) -> dict[str, Any]:
    """The constants that say how codes are decoded. Integers that are not scaled at once are decoded by PTX, which has
    the blocks that share bytes of upper bits in one turn, as it must know where a block's bits are.
    """
    is_by_assembly = scales_sums and format.codebook is None
    unroll = 4 // (format.bits - 4) if is_by_assembly and format.bits in (5, 6) else 1
    return {"SCALES_SUMS": scales_sums, "HAS_ASSEMBLY": is_by_assembly, "UNROLL": unroll}


@cache
def float_factor(format: WeightFormat) -> float | None:
    """What the values of a codebook are as multiples of the float32 numbers whose last bits of the exponent and first
    ones of the mantissa are those of its codes; None for one whose values are no such multiples, and for a format
    without a codebook. NaN, which no weight has, is left out.
    """
    if format.codebook is None or format.bits not in SHIFTS:
        return None
    values, codes = torch.tensor(format.codebook, dtype=torch.float64), torch.arange(1 << format.bits)
    half = 1 << (format.bits - 1)
    bits = (codes % half << (32 - format.bits - SHIFTS[format.bits])) | (codes // half << 31)
    floats = bits.to(torch.int32).view(torch.float32).double()
    factor = float(values[1] / floats[1])
    return factor if torch.equal(values[~values.isnan()], (floats * factor)[~values.isnan()]) else None


class PackedProducts:
    """Computes products of packed weights. Its kernels may be captured."""

    def __init__(self, device: torch.device, is_invariant: bool = False, weights: Iterable[PackedWeight] = ()):
        """is_invariant: whether each row is computed alike, whatever other rows there are. weights: those that captured
        kernels will read, as tables for them cannot be made while kernels are captured.
        """
        self._is_invariant = is_invariant
        self._counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        self._codebooks: dict[WeightFormat, Tensor] = {}
        for weight in weights:
            self._codebook(weight)

    def multiply(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """x [R, K], bias [N] -> [R, N] in the format of x.

        A float32 product is that of the unpacked numbers, which no instruction may add to without rounding them first.
        """
        if len(x) > MOST_DECODED and not self._is_invariant:
            return self._multiply_unpacked(x, weight, bias)
        from lp.model.gpu import packed_kernels

        num_rows, (num_inputs, num_outputs) = len(x), weight.shape
        tile = tile_of(ROWS if self._is_invariant else num_rows, x.element_size())
        ways, num_blocks = ways_of(weight.format, tile.scales_sums), -(-num_inputs // BLOCK)
        share = -(-num_blocks // (ways["UNROLL"] * num_shares(num_inputs, num_outputs))) * ways["UNROLL"]
        grid = -(-num_outputs // tile.outputs), -(-num_rows // tile.rows), -(-num_blocks // share)
        out = x.new_empty(num_rows, num_outputs)
        is_large = grid[2] > 1 and grid[0] * grid[1] > MOST_TILES
        counters = self._counters.new_zeros(grid[0] * grid[1]) if is_large else self._counters
        parts = counters.new_empty((*grid, tile.rows, tile.outputs) if grid[2] > 1 else (1,), dtype=torch.float32)
        kernels.start(
            packed_kernels.multiply_packed, grid, x, *self._planes(weight), x if bias is None else bias, out, parts,
            counters, num_rows, num_inputs, num_outputs, share, x.stride(0), _stride(weight),
            int(bias is not None), BLOCK_M=tile.rows, BLOCK_N=tile.outputs,
            MAY_BE_ODD=num_inputs % (ways["UNROLL"] * BLOCK) != 0, **ways, **constants_of(weight.format, num_inputs),
            num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=x.element_size() < 4,
        )  # fmt: skip
        return out

    def multiply_experts(
        self, x: Tensor, strides: tuple[int, int], step: ExpertProduct, weight: PackedWeight, bias: Tensor | None,
        tiles: Tiles,
    ) -> Tensor:  # fmt: skip
        """As multiply_experts in experts.py, with a weight of all experts, whose outputs lie one expert's behind the
        other's.
        """
        from lp.model.gpu import packed_kernels

        num_experts, num_inputs, num_outputs = step.shape
        tile = tile_of(PAIRS, x.element_size())
        out = x.new_empty(len(x), step.num_choices * num_outputs)
        kernels.start(
            packed_kernels.multiply_packed_experts, (len(tiles.expert_of), -(-num_outputs // OUTPUTS)),
            x, *self._planes(weight), x if bias is None else bias, out, *tiles, *strides, _stride(weight),
            C=step.num_choices, E=num_experts, K=num_inputs, N=num_outputs, HAS_BIAS=bias is not None, BLOCK_M=PAIRS,
            BLOCK_N=OUTPUTS, **ways_of(weight.format, tile.scales_sums), **constants_of(weight.format, num_inputs),
            num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=x.element_size() < 4,
        )  # fmt: skip
        return out

    def look_up(self, table: PackedWeight, index: Tensor, dtype: torch.dtype) -> Tensor:
        """[R, K]: the rows of a table that index, int64 [R], names."""
        return self._unpack(table, index, 0, index.new_empty(len(index), table.num_inputs, dtype=dtype))

    def _multiply_unpacked(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        num_inputs, num_outputs = weight.shape
        at_once = max(1, AT_ONCE // num_inputs)
        if num_outputs <= at_once:
            return linear(x, self._unpack(weight, None, 0, x.new_empty(num_outputs, num_inputs)), bias)
        out = x.new_empty(len(x), num_outputs)
        for first in range(0, num_outputs, at_once):
            last = min(first + at_once, num_outputs)
            some = self._unpack(weight, None, first, x.new_empty(last - first, num_inputs))
            out[:, first:last] = linear(x, some, None if bias is None else bias[first:last])
        return out

    def _unpack(self, weight: PackedWeight, index: Tensor | None, first: int, out: Tensor) -> Tensor:
        from lp.model.gpu import packed_kernels

        block = ROWS_OF_UNPACKING if index is None else ROWS_OF_LOOKUP
        kernels.start(
            packed_kernels.unpack, (-(-len(out) // block), -(-weight.num_inputs // BLOCK)),
            out if index is None else index, *self._planes(weight), out, first, len(out), weight.num_inputs,
            _stride(weight), HAS_INDEX=index is not None, BLOCK_N=block,
            **constants_of(weight.format, weight.num_inputs), enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def _planes(self, weight: PackedWeight) -> tuple[Tensor, ...]:
        """A kernel's arguments; codes in the place of planes that there are not, which it does not read."""
        planes = weight.planes
        given = planes.upper, planes.scales, planes.minima, planes.steps, self._codebook(weight)
        return planes.codes, *(planes.codes if one is None else one for one in given)

    def _codebook(self, weight: PackedWeight) -> Tensor | None:
        format = weight.format
        if format.codebook is None or float_factor(format) is not None:
            return None
        if format not in self._codebooks:
            self._codebooks[format] = torch.tensor(format.codebook, dtype=torch.float32, device=weight.device)
        return self._codebooks[format]


def _stride(weight: PackedWeight) -> int:
    """Outputs of a row of every plane, which are more than the weight's own if it is a part of another one."""
    return weight.planes.scales.stride(0)
