"""Starts the kernels of one layer's attention, in the shapes that suit the number of rows.

R rows, H key/value heads, G query heads for each of them, D numbers of a value
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lp.kv_cache.cache import PAGE
from lp.model.gpu.sinks import power_of_two
from lp.model.gpu.step_tensors import StepTensors
from lp.model.program.steps import Attention
from lp.platform import build as kernels

# Query rows of a tile: matrix units want 16 at least. More of them read the prefix less often, as long as registers
# hold them: half as many if heads are wide, a quarter if they are twice as wide, and a quarter in float32.
LEAST_ROWS, MOST_ROWS = 16, 128
WIDE = 256
# Bytes of a block of keys: with the fewest rows of a tile, and with more.
KEY_BYTES, FEWEST_KEYS = (16384, 8192), 16
# With so much shared memory for a program, tiles of few rows read blocks of many keys, the fastest of what was measured
# on an H200 (docs/log/kernels.md): query rows of a tile, and keys of a block by the width of heads.
LARGE_MEMORY, SMALL_TILE, MANY_KEYS, WIDE_KEYS = 160 * 1024, 32, 128, 32
# A step of more rows than this computes more than it reads: with heads of MANY_KEYS numbers, its tiles have MOST_ROWS,
# or half as many with tensor memory.
MOST_ROWS_IN_SMALL_TILES, LARGEST_MEMORY = 256, 200 * 1024
# Major compute capabilities whose matrix units add in tensor memory. Sums pass through registers for each block of keys
# there, and the compiler works on two blocks at a time, so a thread of a larger tile has half as many numbers of them.
TENSOR_MEMORY = 10, 11
# From so many query rows on, tiles are larger after a long prefix, which they then read less often.
LEAST_QUERIES_AFTER_LONG = 128
# Programs that keep a large GPU busy, two for each of its multiprocessors, and the most shares into which a prefix is
# split for that.
PROGRAMS, MOST_SPLITS = 264, 64
# The most pairs of a tile and a head whose prefix is split.
MOST_SPLIT_TILES = PROGRAMS // 2
# Numbers of shares that the last program of a tile merges: in all, and at a time for each of its warps. Of more numbers
# it would have to wait for memory longer than another kernel takes, whose programs are spread over the GPU.
MOST_MERGED, MERGED_BY_WARP = 32768, 2048


@dataclass(frozen=True)
class Tile:
    """How a program computes attention.

    rows: of the step. queries: query rows, a power of two. keys: of a block. warps: they hold the results in their
    registers. stages: blocks of keys and values that are loaded ahead, and one.
    """

    rows: int
    queries: int
    keys: int
    warps: int
    stages: int


def choose_tile(
    num_rows: int,
    num_groups: int,
    width: int,
    itemsize: int,
    shared_memory: int,
    is_long: bool = False,
    has_tensor_memory: bool = False,
) -> Tile:
    """width: the padded head dimension. itemsize: bytes of a number. shared_memory: bytes that a program may have.
    is_long: whether the prefix is long. has_tensor_memory: whether the GPU is of TENSOR_MEMORY.
    """
    groups, queries = power_of_two(num_groups), max(power_of_two(num_rows * num_groups), LEAST_ROWS)
    is_large = itemsize == 2 and width <= WIDE and shared_memory >= LARGE_MEMORY
    is_long = is_long and width >= MANY_KEYS and shared_memory >= LARGEST_MEMORY and queries >= LEAST_QUERIES_AFTER_LONG
    if is_large and is_long and width == WIDE and groups <= MOST_ROWS // 2:
        warps = 8 if has_tensor_memory else 4
        return Tile(MOST_ROWS // 2 // num_groups, MOST_ROWS // 2, FEWEST_KEYS, warps, 3)
    if is_large and not is_long and num_rows <= MOST_ROWS_IN_SMALL_TILES and groups <= SMALL_TILE:
        queries = min(queries, SMALL_TILE)
        keys, stages = (MANY_KEYS, 2) if width < WIDE else (WIDE_KEYS, 3)
        return Tile(queries // num_groups, queries, keys, 4, stages)
    if is_large and width == MANY_KEYS and shared_memory >= LARGEST_MEMORY:
        queries = max(min(queries, MOST_ROWS // 2 if has_tensor_memory else MOST_ROWS), groups)
        return Tile(queries // num_groups, queries, MANY_KEYS, 8, 2)
    most = max(MOST_ROWS // max(1, 2 * width // WIDE) // (4 if itemsize == 4 else 1), LEAST_ROWS)
    queries = max(min(queries, most), groups)
    keys = block_of_keys(queries, width, itemsize)
    stages = 2 if itemsize == 4 or width > WIDE else 3
    return Tile(queries // num_groups, queries, keys, num_warps(queries, width), stages)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; 0 where there is none, as in Triton's interpreter."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@cache
def has_tensor_memory(device: torch.device) -> bool:
    """Whether the GPU is of TENSOR_MEMORY."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in TENSOR_MEMORY


def num_splits(num_rows: int, rows_of_tile: int, step: Attention) -> int:
    """Into how many shares the prefix is split at most. The host does not know the length, so this depends on rows
    alone; a program whose share is empty ends at once.
    """
    tiles = -(-num_rows // rows_of_tile)
    most = PROGRAMS // (tiles * step.num_heads)
    if (near := step.how.sliding_window or step.how.chunk_size) is not None:
        most = min(most, near // PAGE)
    return min(power_of_two(max(most, 1) + 1) // 2, MOST_SPLITS)


def num_merged(num_queries: int, splits: int, width: int, warps: int) -> int:
    """How many query rows the last program of a tile merges at a time; 0 if another kernel merges them.

    num_queries: of a tile. width: the padded head dimension.
    """
    if splits == 1 or num_queries * splits * width > MOST_MERGED:
        return 0
    return max(1, min(power_of_two(num_queries), MERGED_BY_WARP * warps // (splits * width)))


def new_counters(device: torch.device) -> Tensor:
    """What `attend` counts programs with. One is enough for all that runs on a stream."""
    return torch.zeros(MOST_SPLIT_TILES, dtype=torch.int32, device=device)


def tile_of(step: Attention, num_rows: int, keys: Tensor, is_long: bool = False) -> Tile:
    """The tile of a layer. keys: the layer's. is_long: whether the prefix is long; a window or chunks make it short."""
    is_long = is_long and step.how.sees_all
    width, device = max(_padded(step)), keys.device
    return choose_tile(
        num_rows, step.num_groups, width, keys.element_size(), shared_memory(device), is_long, has_tensor_memory(device)
    )


def attend(
    step: Attention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    given: StepTensors,
    counters: Tensor,
    out: Tensor,
    is_long: bool = False,
) -> None:
    """query: [R, ..], whose rows hold the heads. keys, values: the layer's [pages, PAGE, H, ..]. out: [R, H*G*D].

    counters: of `new_counters`, all 0, as they are again afterwards. is_long: whether the prefix is long.
    """
    from lp.model.gpu import attention_kernels

    num_rows, heads = len(given.tokens), step.num_heads * step.num_groups
    (key_width, width), tile = _padded(step), tile_of(step, num_rows, keys, is_long)
    splits = num_splits(num_rows, tile.rows, step)
    merged = num_merged(min(num_rows, tile.rows) * step.num_groups, splits, width, tile.warps)
    parts = out.new_empty((splits, num_rows, heads, step.value_dim) if splits > 1 else (1,), dtype=torch.float32)
    sums = out.new_empty((splits, num_rows, heads, 2) if splits > 1 else (1,), dtype=torch.float32)
    kernels.start(
        attention_kernels.attend, (-(-num_rows // tile.rows), step.num_heads, splits),
        _first_head(step, query), keys, values, _sinks(step, counters), out, parts, sums, counters, given.slots,
        given.positions, given.visibility, given.sequence_of, given.row_starts, given.block_table, given.lengths,
        num_rows, given.block_table.stride(0), query.stride(0), step.head_stride, float(step.how.scale),
        HEADS=step.num_heads, GROUPS=step.num_groups, HEAD_DIM=step.head_dim, VALUE_DIM=step.value_dim,
        WINDOW=step.how.sliding_window or 0, CHUNK=step.how.chunk_size or 0, SOFTCAP=float(step.how.softcap or 0.0),
        HAS_SINKS=step.sinks is not None, PAGE=PAGE, ROWS=tile.rows, BLOCK_M=tile.queries, BLOCK_N=tile.keys,
        BLOCK_D=key_width, BLOCK_V=width, SPLITS=splits, MERGED=merged, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1 and not merged:
        kernels.start(
            attention_kernels.merge, (num_rows, heads), parts, sums, out, num_rows,
            HEADS=heads, VALUE_DIM=step.value_dim, BLOCK_V=width, SPLITS=splits, num_warps=2,
        )  # fmt: skip


def attend_in_order(
    step: Attention, query: Tensor, keys: Tensor, values: Tensor, given: StepTensors, paths: Tensor, out: Tensor
) -> None:
    """The same, in one order of sums for each row. paths: of `lay_paths`."""
    from lp.model.gpu import invariant_kernels

    num_rows, (key_width, value_width) = len(given.tokens), _padded(step)
    width = max(key_width, value_width)
    block = max(power_of_two(step.num_groups), LEAST_ROWS)
    keys_of_block = block_of_keys(LEAST_ROWS, width, keys.element_size())  # the same whatever the rows are
    kernels.start(
        invariant_kernels.attend_in_order, (num_rows, step.num_heads),
        _first_head(step, query), keys, values, _sinks(step, paths), out, given.slots, given.positions, paths,
        given.sequence_of, given.block_table, given.lengths, num_rows, given.block_table.stride(0), query.stride(0),
        step.head_stride, float(step.how.scale),
        HEADS=step.num_heads, GROUPS=step.num_groups, HEAD_DIM=step.head_dim, VALUE_DIM=step.value_dim,
        WINDOW=step.how.sliding_window or 0, CHUNK=step.how.chunk_size or 0, SOFTCAP=float(step.how.softcap or 0.0),
        HAS_SINKS=step.sinks is not None, PAGE=PAGE, BLOCK_M=block, BLOCK_N=keys_of_block, BLOCK_D=key_width,
        BLOCK_V=value_width,
        num_warps=num_warps(block, width),
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


def block_of_keys(block: int, width: int, itemsize: int) -> int:
    """Keys of a block, as many as registers hold. block: query rows of a tile. width: the padded head dimension."""
    if block > 64 and width > 64:
        return FEWEST_KEYS
    return max(FEWEST_KEYS, min(64, KEY_BYTES[block > LEAST_ROWS] // (width * itemsize)))


def num_warps(block: int, width: int) -> int:
    """Warps that hold a tile's results in their registers."""
    return 8 if block > LEAST_ROWS or width >= 128 else 4


def _padded(step: Attention) -> tuple[int, int]:
    """The padded numbers of a key and of a value."""
    return max(power_of_two(step.head_dim), LEAST_ROWS), max(power_of_two(step.value_dim), LEAST_ROWS)


def _sinks(step: Attention, unused: Tensor) -> Tensor:
    """The sinks of a layer's query heads; for a layer without any, what a kernel may be given in their place."""
    return unused if step.sinks is None else step.sinks.tensor


def _first_head(step: Attention, query: Tensor) -> Tensor:
    """The rows' numbers from the first head on."""
    return query[:, step.query.start :]
