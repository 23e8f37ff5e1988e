"""Copies tokens from slots to slots of an arena, in all its layers: rows that are kept lie among rows that are not.

M = MOST_MOVES; n layers' keys or values of one shape
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp import gpu_kernels
from lp.hardware import upload

# The most tokens that a captured step copies before it begins. A longer path is copied by itself.
MOST_MOVES = 32
NO_MOVES = np.empty((2, 0), np.int64)
# Numbers of a token that one program of the kernel copies.
BLOCK = 1024


def move(stores: Sequence[Tensor], moves: np.ndarray) -> None:
    """stores: [n, pages, PAGE, heads, head_dim] each. moves: int64 [2, any number], from slots and to slots."""
    _move_all(stores, upload(moves, stores[0].device))


def move_given(stores: Sequence[Tensor], moves: Tensor, num_moves: Tensor) -> None:
    """`move` with slots on the device, which a graph may capture: int64 [2, M], of which the first `num_moves`, int64
    [1], count; the others must be slot 0. The sources of a sequence ascend, and no target lies behind its source.
    """
    if stores[0].device.type != "cuda" or gpu_kernels.missing_triton():
        _move_all(stores, moves)
    else:
        move_by_kernel(stores, moves, num_moves)


def copy_pages(stores: Sequence[Tensor], source: int, target: int, count: int) -> None:
    """Copies consecutive pages to others; one operation for all layers that are alike."""
    for store in stores:
        store[:, target : target + count].copy_(store[:, source : source + count])


def move_pages(stores: Sequence[Tensor], sources: list[int], targets: list[int]) -> None:
    """Moves pages to others, of which some may be among them. One layer's at a time, of which this makes a copy."""
    for store in stores:
        for layer in store:
            layer[targets] = layer[sources]


def move_by_kernel(stores: Sequence[Tensor], moves: Tensor, num_moves: Tensor) -> None:
    """`move_given` in one launch for all layers that are alike."""
    from lp.model.kv import triton_kernels

    for store in stores:
        slots = store.flatten(1, 2).flatten(2)
        num_layers, _, width = slots.shape
        gpu_kernels.start(
            triton_kernels.move, (num_layers, -(-width // BLOCK)), slots, moves, num_moves, slots.stride(0), width,
            MOST=moves.shape[1], BLOCK=BLOCK,
        )  # fmt: skip


def _move_all(stores: Sequence[Tensor], moves: Tensor) -> None:
    """One gather and one scatter for all layers that are alike."""
    for store in stores:
        slots = store.flatten(1, 2)
        slots.index_copy_(1, moves[1], torch.index_select(slots, 1, moves[0]))
