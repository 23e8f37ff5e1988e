"""Starts the kernels of one layer's attention, in the shapes that suit the number of given.

R rows, H key/value heads, G query heads for each of them, D head dimension
"""

from __future__ import annotations

import torch
from torch import Tensor

from lp.kv_cache.cache import PAGE
from lp.model.gpu.sinks import power_of_two
from lp.model.gpu.step_tensors import StepTensors
from lp.model.program.steps import Attention, Value
from lp.platform import build as kernels

# Query rows of a tile: matrix units want 16 at least.
LEAST_ROWS, MOST_ROWS = 16, 64
# Programs that keep a large GPU busy, and the most shares into which a prefix is split for that.
PROGRAMS, MOST_SPLITS = 128, 16
# Keys of a block where order matters.
ORDERED_BLOCK = 64


def tile_rows(num_rows: int, num_groups: int) -> tuple[int, int]:
    """Rows of a tile, and query rows, which are a power of two."""
    block = min(max(power_of_two(num_rows * num_groups), LEAST_ROWS), max(MOST_ROWS, power_of_two(num_groups)))
    return block // num_groups, block


def num_splits(num_rows: int, step: Attention) -> int:
    """Into how many shares the prefix is split. The length is not known on the host, so this depends on rows alone."""
    tiles = -(-num_rows // tile_rows(num_rows, step.num_groups)[0])
    most = PROGRAMS // (tiles * step.num_heads)
    if step.how.sliding_window is not None:
        most = min(most, step.how.sliding_window // PAGE)
    return min(power_of_two(max(most, 1) + 1) // 2, MOST_SPLITS)


def attend(step: Attention, query: Tensor, keys: Tensor, values: Tensor, given: StepTensors, out: Tensor) -> None:
    """query: [R, ..], whose rows hold the heads. keys, values: the layer's [pages, PAGE, H, D]. out: [R, H*G*D]."""
    from lp.model.gpu import attention_kernels

    num_rows, heads = len(given.tokens), step.num_heads * step.num_groups
    row_tile, block = tile_rows(num_rows, step.num_groups)
    splits = num_splits(num_rows, step)
    parts = out.new_empty((splits, num_rows, heads, step.head_dim) if splits > 1 else (1,), dtype=torch.float32)
    sums = out.new_empty((splits, num_rows, heads, 2) if splits > 1 else (1,), dtype=torch.float32)
    width = max(power_of_two(step.head_dim), 16)
    kernels.start(
        attention_kernels.attend, (-(-num_rows // row_tile), step.num_heads, splits),
        _first_head(step, query), keys, values, out, parts, sums, given.slots, given.positions, given.visibility,
        given.sequence_of, given.row_starts, given.block_table, given.lengths, num_rows, given.block_table.stride(0),
        query.stride(0), _head_stride(step), float(step.how.scale),
        HEADS=step.num_heads, GROUPS=step.num_groups, HEAD_DIM=step.head_dim,
        WINDOW=step.how.sliding_window or 0, SOFTCAP=float(step.how.softcap or 0.0), PAGE=PAGE,
        ROWS=row_tile, BLOCK_M=block, BLOCK_N=block_of_keys(block, width), BLOCK_D=width, SPLITS=splits,
        num_warps=num_warps(block, width),
    )  # fmt: skip
    if splits > 1:
        kernels.start(
            attention_kernels.merge, (num_rows, heads), parts, sums, out, num_rows,
            HEADS=heads, HEAD_DIM=step.head_dim, BLOCK_D=width, SPLITS=splits, num_warps=2,
        )  # fmt: skip


def attend_in_order(
    step: Attention, query: Tensor, keys: Tensor, values: Tensor, given: StepTensors, paths: Tensor, out: Tensor
) -> None:
    """The same, in one order of sums for each row. paths: of `lay_paths`."""
    from lp.model.gpu import invariant_kernels

    num_rows, width = len(given.tokens), max(power_of_two(step.head_dim), 16)
    block = max(power_of_two(step.num_groups), LEAST_ROWS)
    kernels.start(
        invariant_kernels.attend_in_order, (num_rows, step.num_heads),
        _first_head(step, query), keys, values, out, given.slots, given.positions, paths, given.sequence_of,
        given.block_table, given.lengths, num_rows, given.block_table.stride(0), query.stride(0),
        _head_stride(step), float(step.how.scale),
        HEADS=step.num_heads, GROUPS=step.num_groups, HEAD_DIM=step.head_dim,
        WINDOW=step.how.sliding_window or 0, SOFTCAP=float(step.how.softcap or 0.0), PAGE=PAGE,
        BLOCK_M=block, BLOCK_N=ORDERED_BLOCK, BLOCK_D=width, num_warps=num_warps(block, width),
    )  # fmt: skip


def lay_paths(given: StepTensors) -> Tensor:
    """[R, R] int32: the rows on each row's path, by their depth. The same for all layers."""
    from lp.model.gpu import invariant_kernels

    num_rows = len(given.tokens)
    paths = torch.empty(num_rows, num_rows, dtype=torch.int32, device=given.tokens.device)
    kernels.start(
        invariant_kernels.lay_paths, (num_rows,), paths, given.positions, given.visibility, given.sequence_of,
        given.lengths, num_rows, BLOCK=min(max(power_of_two(num_rows), 16), 1024),
    )  # fmt: skip
    return paths


def block_of_keys(block: int, width: int) -> int:
    """Keys of a block, as many as registers hold. block: query rows of a tile. width: the padded head dimension."""
    return min(64, (8192 if block <= LEAST_ROWS else 4096) // width)


def num_warps(block: int, width: int) -> int:
    """Warps that hold a tile's results in their registers."""
    return 8 if block > LEAST_ROWS or width >= 128 else 4


def _first_head(step: Attention, query: Tensor) -> Tensor:
    """The rows' numbers from the first head on."""
    return query[:, step.query.start :]


def _head_stride(step: Attention) -> int:
    assert isinstance(step.query.source, Value)
    return step.query.strides[0] if step.query.strides else 0
