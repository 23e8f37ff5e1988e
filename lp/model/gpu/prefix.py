"""Attention without a mask over the cached prefix, by the kernels that a GPU may have: flash-attn's or torch's.

Both are FlashAttention-2 (Dao, arXiv 2307.08691). The host never reads the prefix's length, as a captured graph is
replayed with other lengths.

    R rows of B sequences, C keys and values, of which each sequence has some, P pages of a sequence at most,
    H key/value heads, G query heads for each of them, D head dimension
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lp.model.errors import one_line

# The largest head dimension that FlashAttention-2 supports.
LARGEST_HEAD = 256

# Torch's `varlen_attn` wraps this operator; of the wrapper, some versions lack arguments that the operator has.
_operator: Any = torch.ops.aten._flash_attention_forward.default


class Bounds(NamedTuple):
    """Which rows and keys belong to each sequence, on the device, as int32.

    rows: [B + 1] the first row of each sequence, then R. keys: [B + 1] the first key of each sequence, where its keys
    lie one behind the other; flash-attn takes the sums of lengths for several sequences. lengths: [B] the number of
    keys that the sequence's rows see.
    most: the most keys of a sequence. table: [B, P] the pages of each sequence, where its keys lie in pages.
    """

    rows: Tensor
    keys: Tensor
    lengths: Tensor
    most: int
    table: Tensor | None = None


def make_bounds(num_rows: int, capacity: int, length: Tensor) -> Bounds:
    """The bounds of a step of one sequence, whose keys are the first ones. length: [] on the device, of any integer
    type.
    """
    ends = torch.arange(2, dtype=torch.int32, device=length.device)
    return Bounds(ends * num_rows, ends * capacity, length.to(torch.int32)[None], capacity)


def missing_operator() -> str:
    """Why torch's operator cannot be used; empty if it can be."""
    if "seqused_k" in {argument.name for argument in _operator._schema.arguments}:
        return ""
    return f"the attention operator of torch {torch.__version__} takes no seqused_k"


def missing_package() -> str:
    """Why flash-attn cannot be used; empty if it can be. It is imported, as what is installed may still be broken."""
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed (pip install 'lookahead-parallel[flash]')"
    try:
        _flash_attn()
    except Exception as error:  # a library built for another torch can raise anything
        return f"flash-attn is installed but cannot be used ({type(error).__name__}: {one_line(error)})"
    return ""


@cache
def _flash_attn() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The package's function for one sequence, which splits its keys among programs, and that for several."""
    package = importlib.import_module("flash_attn")
    return package.flash_attn_with_kvcache, package.flash_attn_varlen_func


def by_flash_attn(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scale: float) -> tuple[Tensor, Tensor]:
    """query [1, R, H*G, D], key and value [1, C, H, D] of one sequence, or [pages, tokens, H, D] with a table ->
    [1, R, H*G, D] and log-sum-exp [1, H*G, R].
    """
    of_one, of_several = _flash_attn()
    table = {} if bounds.table is None else {"block_table": bounds.table}
    if len(bounds.lengths) == 1:
        return of_one(
            query, key, value, cache_seqlens=bounds.lengths, softmax_scale=scale, return_softmax_lse=True, **table
        )
    assert table, "the keys of several sequences are read through a block table"
    out, sums, *_ = of_several(
        query[0], key, value, bounds.rows, bounds.keys, query.shape[1], bounds.most,
        softmax_scale=scale, return_attn_probs=True, **table,
    )  # fmt: skip
    return out[None], sums[None]


def by_torch(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scale: float) -> tuple[Tensor, Tensor]:
    """The same by torch's operator, for any number of sequences."""
    if bounds.table is None:
        table, keys, values = {}, key[0], value[0]
    else:
        table, keys, values = {"block_table": bounds.table}, key, value
    out, sums, *_ = _operator(
        query[0], keys, values, bounds.rows, bounds.keys, query.shape[1], bounds.most, 0.0, False, False,
        scale=scale, seqused_k=bounds.lengths, **table,
    )  # fmt: skip
    return out[None], sums[None]
