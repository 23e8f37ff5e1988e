"""What a fused forward is given: a step's rows, and where their keys and values lie.

R rows of B sequences, P pages of a sequence at most, H key/value heads, D head dimension
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# Tokens of a page of the KV cache.
PAGE = 256


@dataclass(frozen=True)
class Rows:
    """A step's rows, all on the device.

    tokens, positions: int64 [R]. slots: int64 [R], the places of the rows' keys and values: page * PAGE + offset.
    lengths: int32 [B], cached tokens. row_starts: int32 [B + 1], the first row of each sequence, then R. block_table:
    int32 [B, P], each sequence's pages. visibility: bool [R, R], which rows each row sees; every row sees itself.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    row_starts: Tensor
    block_table: Tensor
    visibility: Tensor


@dataclass(frozen=True)
class Stores:
    """The KV cache: for each layer keys and values [pages, PAGE, H, D], contiguous."""

    keys: list[Tensor]
    values: list[Tensor]
