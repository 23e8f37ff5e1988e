"""Products of rows with the weights of the experts that they are sent to.

The pairs of a row and one of its experts are laid out expert by expert, in tiles that have one expert each. The host
knows how many tiles there are at most, so a graph can be captured. Each row's numbers are the same to the last bit
whatever other rows there are.

    R rows, C experts for each row, P = R * C pairs, E experts, K inputs, N outputs, T tiles
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lp.platform import build as kernels

# A tile: pairs, outputs, and inputs that are added at a time.
PAIRS, OUTPUTS, INPUTS = 16, 64, 64


class Tiles(NamedTuple):
    """pairs: int64 [P], numbers of rows' choices, those of one expert side by side. expert_of, begins, ends: int64 [T],
    the expert of a tile, E for a tile that is not needed, and which of `pairs` it has.
    """

    pairs: Tensor
    expert_of: Tensor
    begins: Tensor
    ends: Tensor


def lay_tiles(experts: Tensor, num_experts: int) -> Tiles:
    """experts: int64 [R, C]."""
    flat = experts.reshape(-1)
    number, device = len(flat), experts.device
    counts = (flat[:, None] == torch.arange(num_experts, device=device)).sum(0)
    num_tiles = (counts + PAIRS - 1) // PAIRS
    last_tiles, last_pairs = num_tiles.cumsum(0), counts.cumsum(0)
    tiles = torch.arange(min(number, number // PAIRS + num_experts), device=device)
    expert_of = torch.searchsorted(last_tiles, tiles, right=True)
    own = expert_of.clamp(max=num_experts - 1)
    begins = (last_pairs - counts)[own] + (tiles - (last_tiles - num_tiles)[own]) * PAIRS
    return Tiles(flat.argsort(stable=True), expert_of, begins, last_pairs[own])


def multiply_experts(
    x: Tensor, strides: tuple[int, int], weight: Tensor, bias: Tensor | None, num_choices: int, tiles: Tiles
) -> Tensor:
    """x [R, C, K], whose strides of rows and choices are given, weight [E, K, N] with any strides, bias [E, N] ->
    [R, C * N] in the format of x.
    """
    from lp.model.gpu import expert_kernels

    num_experts, num_inputs, num_outputs = weight.shape
    out = x.new_empty(len(x), num_choices * num_outputs)
    kernels.start(
        expert_kernels.multiply_experts, (len(tiles.expert_of), -(-num_outputs // OUTPUTS)),
        x, weight, weight if bias is None else bias, out, *tiles, *strides, *weight.stride(),
        C=num_choices, E=num_experts, K=num_inputs, N=num_outputs, HAS_BIAS=bias is not None, BLOCK_M=PAIRS,
        BLOCK_N=OUTPUTS, BLOCK_K=INPUTS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
