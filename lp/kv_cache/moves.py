"""Copies tokens from slots to slots of an arena, in all its layers: rows that are kept lie among rows that are not.

M moves at most, G groups of them; n layers' keys or values of one shape
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp.platform import build as kernels
from lp.platform.hardware import upload

# The most tokens of one sequence that a captured step copies before it begins. A longer path is copied by itself.
MOST_MOVES = 32
# Groups of moves that are made at the same time, where a step may have several sequences.
NUM_GROUPS = 8
NO_MOVES = np.empty((2, 0), np.int64)
NOWHERE: tuple[list[int], list[int]] = ([], [])  # no positions from which and to which tokens are to be copied
# Numbers of a token that one program of the kernel copies.
BLOCK = 1024


def move(stores: Sequence[Tensor], moves: np.ndarray) -> None:
    """stores: [n, pages, PAGE, heads, head_dim] each. moves: int64 [2, any number], from slots and to slots."""
    _move_all(stores, upload(moves, stores[0].device))


def move_given(stores: Sequence[Tensor], moves: Tensor, move_starts: Tensor) -> None:
    """`move` with slots on the device, which a graph may capture: int64 [2, M], of which some count; the others must be
    slot 0. The sources of a sequence ascend, and no target lies behind its source.

    move_starts: int64 [G + 1], the first move of each group and the end of the last. A sequence's moves are in one
    group; moves of different groups may be made in any order.
    """
    if stores[0].device.type != "cuda" or kernels.missing_triton():
        _move_all(stores, moves)
    else:
        move_by_kernel(stores, moves, move_starts)


def copy_pages(stores: Sequence[Tensor], source: int, target: int, count: int) -> None:
    """Copies consecutive pages to others; one operation for all layers that are alike."""
    for store in stores:
        store[:, target : target + count].copy_(store[:, source : source + count])


def read_slots(stores: Sequence[Tensor], slots: Tensor) -> Tensor:
    """A copy of what lies at some slots: one store's layers behind the other's, each layer [slots, heads, head_dim]."""
    return torch.cat([store.flatten(1, 2).index_select(1, slots).flatten() for store in stores])


def write_slots(stores: Sequence[Tensor], slots: Tensor, numbers: Tensor) -> None:
    """The inverse of `read_slots`."""
    begin = 0
    for store in stores:
        places = store.flatten(1, 2)
        shape = (places.shape[0], len(slots), *places.shape[2:])
        size = int(np.prod(shape))
        places.index_copy_(1, slots, numbers[begin : begin + size].view(shape))
        begin += size


def move_by_kernel(stores: Sequence[Tensor], moves: Tensor, move_starts: Tensor) -> None:
    """`move_given` in one launch for all layers that are alike."""
    from lp.kv_cache import triton_kernels

    for store in stores:
        slots = store.flatten(1, 2).flatten(2)
        num_layers, _, width = slots.shape
        kernels.start(
            triton_kernels.move, (num_layers, -(-width // BLOCK), len(move_starts) - 1), slots, moves, move_starts,
            slots.stride(0), width, moves.shape[1], BLOCK=BLOCK,
        )  # fmt: skip


def positions_to_move(rows: Sequence[int], length: int) -> tuple[list[int], list[int]]:
    """The positions from which and to which tokens are to be copied, so that these rows, which ascend, follow the first
    `length` tokens.
    """
    sources, targets = list[int](), list[int]()
    for place, row in enumerate(rows):
        if row != place:
            sources.append(length + row)
            targets.append(length + place)
    return sources, targets


def group_moves(counts: Sequence[int], num_groups: int) -> np.ndarray:
    """int64 [num_groups + 1], the first move of each group if sequences have so many moves. Groups are about alike."""
    starts = np.cumsum([0, *counts])
    return starts[np.searchsorted(starts, np.linspace(0, starts[-1], num_groups + 1))]


def _move_all(stores: Sequence[Tensor], moves: Tensor) -> None:
    """One gather and one scatter for all layers that are alike."""
    for store in stores:
        slots = store.flatten(1, 2)
        slots.index_copy_(1, moves[1], torch.index_select(slots, 1, moves[0]))
