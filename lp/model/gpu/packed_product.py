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
from lp.model.gpu.split_product import MOST_PROGRAMS, MOST_TILES
from lp.model.program.steps import ExpertProduct
from lp.model.quantization.packed import PackedWeight
from lp.model.quantization.weight import GROUP, WeightFormat
from lp.platform import build as kernels

# Inputs that a program decodes at a time.
BLOCK = 2 * GROUP
# Blocks of inputs that a share has at least: with fewer, its sums cost as much as its codes.
LEAST_BLOCKS = 4
# Rows of a tile. Matrix units multiply 8 at least and Triton's tiles have 16; in float32, which has no such units, a
# thread has no registers for more than 32.
LEAST_ROWS, MOST_ROWS, MOST_ROWS_FLOAT32 = 16, 128, 32
# The number of rows from which tiles have more outputs, so that rows, which are then more bytes than codes, are read
# less often.
MANY_ROWS = 64
FEW_OUTPUTS, MANY_OUTPUTS = 64, 128
# The most rows of a product by the kernel that decodes in registers. For more, so many numbers are unpacked at a time.
MOST_DECODED, AT_ONCE = LADDER[-1], 1 << 26
# Rows that one program of a lookup has.
ROWS_OF_LOOKUP, ROWS_OF_UNPACKING = 16, 64
# Bits of the mantissa of codes that are floating-point numbers (E2M1 and E4M3), by the bits of a code.
MINIFLOATS = {4: 1, 8: 3}


@dataclass(frozen=True)
class PackedTile:
    """rows, outputs: of one program."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int


def tile_of(num_rows: int, itemsize: int) -> PackedTile:
    """The tile for a product of so many rows.

    A program of few rows does little else than wait for memory, so its warps are few and its stages many.
    """
    rows = min(max(power_of_two(num_rows), LEAST_ROWS), MOST_ROWS_FLOAT32 if itemsize == 4 else MOST_ROWS)
    is_high = rows >= MANY_ROWS
    outputs = MANY_OUTPUTS if is_high else FEW_OUTPUTS
    return PackedTile(rows, outputs, num_warps=8 if is_high else 4, num_stages=3 if is_high else 4)


def num_shares(num_inputs: int, num_outputs: int) -> int:
    """Among how many programs the inputs are split: a power of two, which depends on the weight alone."""
    num_tiles, num_blocks = -(-num_outputs // FEW_OUTPUTS), -(-num_inputs // BLOCK)
    most = max(1, min(MOST_PROGRAMS // num_tiles, num_blocks // LEAST_BLOCKS))
    return 1 << (most.bit_length() - 1)


def unrolled(num_inputs: int, num_rows: int) -> int:
    """Blocks of inputs in one turn of a program's loop. With few rows they are two, where inputs are a multiple of
    that, so that the scales of four groups, which are too small to be copied ahead as codes are, are on their way at a
    time. With many, two blocks of rows do not fit the shared memory of the smallest GPUs, 99 KB.

    num_rows: of a tile.
    """
    return 1 if num_inputs % (2 * BLOCK) or num_rows >= MANY_ROWS else 2


@cache
def constants_of(format: WeightFormat, num_inputs: int) -> dict[str, Any]:
    """The constants of a format's kernels."""
    from lp.model.gpu.packed_kernels import FLOAT, INTEGER, TABLE

    factor, span = float_factor(format), format.span or num_inputs
    kind = INTEGER if format.codebook is None else TABLE if factor is None else FLOAT
    return {
        "BITS": format.bits, "KIND": kind.value, "ZERO": float(format.zero), "FACTOR": factor or 1.0,
        "SHIFT": 10 - MINIFLOATS[format.bits] if kind == FLOAT else 0,
        "SPAN": 0 if span == num_inputs else span // GROUP, "STEP_GROUP": 0 if format.step is None else format.group,
        "HAS_MINIMA": format.has_minima, "HAS_MINIMUM_STEPS": format.has_minimum_steps,
    }  # fmt: skip


@cache
def float_factor(format: WeightFormat) -> float | None:
    """What the values of a codebook are as multiples of the float16 numbers whose bits hold its codes; None for one
    whose values are no such multiples, and for a format without a codebook. NaN, which no weight has, is left out.
    """
    if format.codebook is None or format.bits not in MINIFLOATS:
        return None
    values, codes = torch.tensor(format.codebook), torch.arange(1 << format.bits, dtype=torch.int32)
    half = 1 << (format.bits - 1)
    bits = (codes % half << (10 - MINIFLOATS[format.bits])) | (codes // half << 15)
    floats = bits.to(torch.int16).view(torch.float16).float()
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
        """x [R, K], bias [N] -> [R, N] in the format of x."""
        if len(x) > MOST_DECODED and not self._is_invariant:
            return self._multiply_unpacked(x, weight, bias)
        from lp.model.gpu import packed_kernels

        num_rows, (num_inputs, num_outputs) = len(x), weight.shape
        tile = tile_of(ROWS if self._is_invariant else num_rows, x.element_size())
        num_blocks = -(-num_inputs // BLOCK)
        # Even for any number of rows, so that two blocks may be in one turn.
        share = -(-num_blocks // (2 * num_shares(num_inputs, num_outputs))) * 2
        grid = -(-num_outputs // tile.outputs), -(-num_rows // tile.rows), -(-num_blocks // share)
        out = x.new_empty(num_rows, num_outputs)
        is_large = grid[0] * grid[1] > MOST_TILES
        counters = self._counters.new_zeros(grid[0] * grid[1]) if is_large else self._counters
        parts = counters.new_empty((*grid, tile.rows, tile.outputs) if grid[2] > 1 else (1,), dtype=torch.float32)
        kernels.start(
            packed_kernels.multiply_packed, grid, x, *self._planes(weight), x if bias is None else bias, out, parts,
            counters, num_rows, num_inputs, num_outputs, share, x.stride(0), _stride(weight), int(bias is not None),
            BLOCK_M=tile.rows, BLOCK_N=tile.outputs, UNROLL=unrolled(num_inputs, tile.rows),
            **constants_of(weight.format, num_inputs), num_warps=tile.num_warps, num_stages=tile.num_stages,
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
        out = x.new_empty(len(x), step.num_choices * num_outputs)
        kernels.start(
            packed_kernels.multiply_packed_experts, (len(tiles.expert_of), -(-num_outputs // FEW_OUTPUTS)),
            x, *self._planes(weight), x if bias is None else bias, out, *tiles, *strides, _stride(weight),
            C=step.num_choices, E=num_experts, K=num_inputs, N=num_outputs, HAS_BIAS=bias is not None, BLOCK_M=PAIRS,
            BLOCK_N=FEW_OUTPUTS, **constants_of(weight.format, num_inputs), num_warps=4, num_stages=4,
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
            **constants_of(weight.format, weight.num_inputs),
        )  # fmt: skip
        return out

    def _planes(self, weight: PackedWeight) -> tuple[Tensor, ...]:
        """A kernel's arguments; codes in the place of planes that there are not, which it does not read."""
        planes = weight.planes
        given = (planes.upper, planes.scales, planes.steps, planes.minima, planes.minimum_steps, self._codebook(weight))
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
