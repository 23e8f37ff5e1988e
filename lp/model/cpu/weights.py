"""Weights as the native products read them: in panels, in one piece of memory with large pages.

K inputs, N outputs, P panels, W outputs of a panel, T inputs that lie together: 2 in bfloat16, else 1
"""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

# The inputs of products in a 16-bit format are padded to a multiple of this, which matrix units ask for.
MULTIPLE = 32
# Each weight begins at a multiple of this many bytes, which is a cache line's size.
ALIGNMENT = 64


def packed_shape(weight: Tensor, width: int) -> tuple[int, int, int, int]:
    """[P, K / T, W, T] of a weight [K, N]. width: W."""
    num_inputs, num_outputs = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1
    if weight.dtype != torch.float32:
        num_inputs = -(-num_inputs // MULTIPLE) * MULTIPLE
    return -(-num_outputs // width), num_inputs // together, width, together


def pack(weight: Tensor, out: Tensor) -> None:
    """Writes a weight [K, N] into panels [P, K / T, W, T]; what is beyond the weight becomes 0."""
    panels, steps, width, together = out.shape
    beyond = 0, panels * width - weight.shape[1], 0, steps * together - weight.shape[0]
    whole = pad(weight, beyond) if any(beyond) else weight  # padding by nothing would copy the weight
    out.copy_(whole.view(steps, together, panels, width).permute(2, 0, 3, 1))


class Arena:
    """Memory in one piece, filled from its beginning on."""

    def __init__(self, num_bytes: int):
        """num_bytes: the sum of `space` of all that will be taken."""
        # Memory that is shared with child processes, the default, has no large pages on most systems.
        self._memory = mmap.mmap(-1, max(num_bytes, 1) + mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._used = 0

    @staticmethod
    def space(shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Bytes that a tensor takes."""
        return -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        begin, self._used = self._used, self._used + self.space(shape, dtype)
        return self._bytes[begin : begin + prod(shape) * dtype.itemsize].view(dtype).view(shape)
