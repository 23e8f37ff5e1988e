"""The blocks of quantised tensors in GGUF files, split into codes and scales.

The layout of blocks is that of the package gguf (gguf.quants), whose numbers are the ones that come out.

N outputs, B blocks of an output, K inputs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from lp.model.quantization.weight import IndexedWeight, Numbers, WeightFormat

# Twice the numbers of E2M1, which lie beside the halves of their scales in a block.
E2M1 = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
IQ4_NL = tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)))


@dataclass(frozen=True)
class BlockType:
    """One type of blocks. split: makes numbers of bytes uint8 [N, B, bytes of a block]."""

    format: WeightFormat
    split: Callable[[Tensor], Numbers]


class GgufWeight(IndexedWeight):
    """A quantised tensor of a GGUF file, whose bytes are those of the file."""

    def __init__(self, blocks: Tensor, kind: int, dtype: torch.dtype, order: Tensor | None = None):
        """blocks: uint8 [N, bytes of an output]. kind: a key of BLOCK_TYPES. order: where each output lies in the
        blocks, int64 [N]; None stands for their own order. Raises ValueError; see QuantizedWeight.
        """
        self._type = BLOCK_TYPES[kind]
        self._blocks, self._order = blocks, order
        block, self._block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        super().__init__(self._type.format, len(blocks), blocks.shape[1] // self._block_bytes * block, dtype)

    @property
    def num_bytes(self) -> int:
        return self._blocks.numel()

    def free(self) -> None:
        self._blocks = self._blocks.new_empty(0)

    def _numbers(self, outputs: slice | Tensor) -> Numbers:
        blocks = self._blocks[outputs if self._order is None else self._order[outputs]]
        return self._type.split(blocks.view(len(blocks), -1, self._block_bytes))


def _half(blocks: Tensor, at: int) -> Tensor:
    """float16 [N, B]: the number that begins at a byte of each block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(some: Tensor, size: int) -> Tensor:
    """uint8 [N, 2 * bytes]: of each `size` bytes first the lower halves, then the upper ones."""
    pieces = some.reshape(len(some), -1, 1, size)
    return torch.cat([pieces & 15, pieces >> 4], dim=2).view(len(some), -1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """uint8 [N, K]: 16 where a bit of the four bytes from `at` on is set."""
    places = torch.arange(8, dtype=torch.uint8)
    return ((blocks[..., at : at + 4, None] >> places & 1) << 4).view(len(blocks), -1)


def _split_q4_0(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 2:], 16), _half(blocks, 0))


def _split_q4_1(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 4:], 16), _half(blocks, 0), minima=-_half(blocks, 2))


def _split_q5_0(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 6:], 16) | _fifth_bits(blocks, 2), _half(blocks, 0))


def _split_q5_1(blocks: Tensor) -> Numbers:
    codes = _nibbles(blocks[..., 8:], 16) | _fifth_bits(blocks, 4)
    return Numbers(codes, _half(blocks, 0), minima=-_half(blocks, 2))


def _split_q8_0(blocks: Tensor) -> Numbers:
    return Numbers((blocks[..., 2:] ^ 128).reshape(len(blocks), -1), _half(blocks, 0))


def _k_steps(some: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 [N, 8 B]: steps and minimum steps of 6 bits, from their 12 bytes."""
    low, high, mixed = some.view(*some.shape[:2], 3, 4).unbind(dim=2)
    steps = torch.cat([low & 63, mixed & 15 | low >> 2 & 48], dim=2)
    minimum_steps = torch.cat([high & 63, mixed >> 4 | high >> 2 & 48], dim=2)
    return steps.view(len(some), -1), minimum_steps.view(len(some), -1)


def _split_q4_k(blocks: Tensor) -> Numbers:
    steps, minimum_steps = _k_steps(blocks[..., 4:16].contiguous())
    return Numbers(_nibbles(blocks[..., 16:], 32), _half(blocks, 0), steps, _half(blocks, 2), minimum_steps)


def _split_q5_k(blocks: Tensor) -> Numbers:
    steps, minimum_steps = _k_steps(blocks[..., 4:16].contiguous())
    places = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> places & 1) << 4).view(len(blocks), -1)
    return Numbers(_nibbles(blocks[..., 48:], 32) | fifth, _half(blocks, 0), steps, _half(blocks, 2), minimum_steps)


def _split_q6_k(blocks: Tensor) -> Numbers:
    places = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    upper = blocks[..., 128:192].reshape(len(blocks), -1, 1, 32) >> places & 3
    codes = _nibbles(blocks[..., :128], 64) | (upper << 4).view(len(blocks), -1)
    steps = blocks[..., 192:208].contiguous().view(torch.int8).view(len(blocks), -1)
    return Numbers(codes, _half(blocks, 208), steps)


def _split_mxfp4(blocks: Tensor) -> Numbers:
    """The codebook holds twice the numbers, so the exponents are one less. A block of zeros has exponent 0."""
    return Numbers(_nibbles(blocks[..., 1:], 16), blocks[..., 0].clamp(min=1) - 1)


def _split_iq4_nl(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 2:], 16), _half(blocks, 0))


BLOCK_TYPES: dict[int, BlockType] = {
    GGMLQuantizationType.Q4_0: BlockType(WeightFormat("Q4_0", 4, zero=8), _split_q4_0),
    GGMLQuantizationType.Q4_1: BlockType(WeightFormat("Q4_1", 4, has_minima=True), _split_q4_1),
    GGMLQuantizationType.Q5_0: BlockType(WeightFormat("Q5_0", 5, zero=16), _split_q5_0),
    GGMLQuantizationType.Q5_1: BlockType(WeightFormat("Q5_1", 5, has_minima=True), _split_q5_1),
    GGMLQuantizationType.Q8_0: BlockType(WeightFormat("Q8_0", 8, zero=128), _split_q8_0),
    GGMLQuantizationType.Q4_K: BlockType(
        WeightFormat("Q4_K", 4, span=256, step=torch.uint8, has_minima=True, has_minimum_steps=True), _split_q4_k
    ),
    GGMLQuantizationType.Q5_K: BlockType(
        WeightFormat("Q5_K", 5, span=256, step=torch.uint8, has_minima=True, has_minimum_steps=True), _split_q5_k
    ),
    GGMLQuantizationType.Q6_K: BlockType(
        WeightFormat("Q6_K", 6, zero=32, span=256, group=16, step=torch.int8), _split_q6_k
    ),
    GGMLQuantizationType.MXFP4: BlockType(WeightFormat("MXFP4", 4, codebook=E2M1, scale=torch.uint8), _split_mxfp4),
    GGMLQuantizationType.IQ4_NL: BlockType(WeightFormat("IQ4_NL", 4, codebook=IQ4_NL), _split_iq4_nl),
}
