"""Products of few rows by a kernel of our own, which splits the inputs among programs.

With few rows a product takes as long as its weight is read. A weight with few outputs has too few tiles to keep a GPU
reading, so each tile's inputs are split.

R rows, K inputs, N outputs
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lp.model.gpu.sinks import power_of_two
from lp.platform import build as kernels

# Rows of a tile, which are a power of two: matrix units want 16 at least. In float32 they have no units of their own.
LEAST_ROWS, MOST_ROWS, MOST_ROWS_FLOAT32 = 16, 128, 64
# The number of rows from which arithmetic counts: tiles then have more outputs, so that rows are read less often.
MANY_ROWS = 64
# Programs that are worth starting on a large GPU, four for each of its multiprocessors, and the blocks of inputs that
# each has at least.
MOST_PROGRAMS, LEAST_BLOCKS = 528, 2
# The most tiles whose inputs are split.
MOST_TILES = MOST_PROGRAMS // 2


@dataclass(frozen=True)
class Tile:
    """rows, outputs: of one program. inputs: added at a time."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


def tile_of(num_rows: int, itemsize: int) -> Tile:
    """The tile for a product of so many rows. Its blocks fit the shared memory of the smallest GPUs, 99 KB."""
    most = MOST_ROWS_FLOAT32 if itemsize == 4 else MOST_ROWS
    rows = min(max(power_of_two(num_rows), LEAST_ROWS), most)
    is_high, is_half = rows >= MANY_ROWS, itemsize < 4
    outputs = 128 if is_high and is_half else 64
    num_bytes = 256 if is_half and not is_high else 128
    return Tile(rows, outputs, num_bytes // itemsize, outputs // 16, num_stages=4 if rows == LEAST_ROWS else 3)


def split_counts(num_rows: int, num_inputs: int, num_outputs: int, itemsize: int) -> list[int]:
    """Into how many shares the inputs may be split: powers of two, of which up to three are worth trying."""
    tile = tile_of(num_rows, itemsize)
    num_tiles = -(-num_rows // tile.rows) * -(-num_outputs // tile.outputs)
    most = max(1, min(MOST_PROGRAMS // num_tiles, num_inputs // (LEAST_BLOCKS * tile.inputs)))
    return [1 << exponent for exponent in range(most.bit_length())][-3:]


def multiply_in_splits(x: Tensor, weight: Tensor, bias: Tensor | None, num_splits: int, counters: Tensor) -> Tensor:
    """x [R, K], weight [K, N] with any strides, bias [N] -> [R, N] in the format of x.

    num_splits: of `split_counts`. counters: int32 [MOST_TILES], all 0, as they are again afterwards.
    """
    from lp.model.gpu import split_kernels

    num_rows, (num_inputs, num_outputs) = len(x), weight.shape
    tile = tile_of(num_rows, x.element_size())
    share = -(-num_inputs // (num_splits * tile.inputs)) * tile.inputs
    grid = -(-num_outputs // tile.outputs), -(-num_rows // tile.rows), -(-num_inputs // share)
    out = x.new_empty(num_rows, num_outputs)
    parts = counters.new_empty((*grid, tile.rows, tile.outputs) if grid[2] > 1 else (1,), dtype=torch.float32)
    kernels.start(
        split_kernels.multiply_in_splits, grid, x, weight, weight if bias is None else bias, out, parts, counters,
        num_rows, num_inputs, num_outputs, share, x.stride(0), *weight.stride(), int(bias is not None),
        BLOCK_M=tile.rows, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs, num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return out
