"""FlashAttention (Dao, arXiv 2307.08691), by the functions that a GPU may have: those of two packages, and torch's own.

They compute attention without a mask over a prefix, and causal attention of the last rows of sequences over keys and
values in pages. They know no trees.

    R rows of B sequences, C keys and values, P pages of a sequence at most, H key/value heads, G query heads for each
    of them, D head dimension
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lp.model.errors import one_line
from lp.platform.hardware import dtype_name

HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
# The modules of FlashAttention-2 and -3.
PACKAGE, PACKAGE_3 = "flash_attn", "flash_attn_interface"

_operator: Any = torch.ops.aten._flash_attention_forward.default


def obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Why no FlashAttention can compute this; empty if it can."""
    if device.type != "cuda":
        return f"it needs a CUDA device, and this is {device.type}"
    if dtype not in HALF:
        return f"it needs float16 or bfloat16, and this is {dtype_name(dtype)}"
    if head_dim > LARGEST_HEAD or head_dim % 8:
        return f"it needs a head dimension that is a multiple of 8 up to {LARGEST_HEAD}, and this is {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or later"
    return ""


def missing_package() -> str:
    """Why flash-attn cannot be used; empty if it can be. It is imported, as what is installed may still be broken."""
    if missing := _not_installed(PACKAGE):
        return f"flash-attn is {missing}"
    try:
        _function(PACKAGE, "flash_attn_with_kvcache")
    except Exception as error:  # a library built for another torch can raise anything
        return f"flash-attn is installed but cannot be used ({type(error).__name__}: {one_line(error)})"
    return ""


def _not_installed(module: str) -> str:
    """Says that a module is not installed; empty if it is."""
    if importlib.util.find_spec(module) is not None:
        return ""
    return "not installed" + (" (pip install 'lookahead-parallel[flash]')" if module == PACKAGE else "")


def _function(module: str, function: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), function)


def prefix_by_package(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """query [1, R, H*G, D], key and value [1, C, H, D], of which each row sees all -> [1, R, H*G, D] and log-sum-exp
    [1, H*G, R].
    """
    return _function(PACKAGE, "flash_attn_with_kvcache")(
        query, key, value, softmax_scale=scale, return_softmax_lse=True
    )


def prefix_by_torch(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same by torch's operator."""
    rows, keys = query.shape[1], key.shape[1]
    out, sums, *_ = _operator(query, key, value, None, None, rows, keys, 0.0, False, False, scale=scale)
    return out, sums


class Chains(NamedTuple):
    """Which rows and keys belong to each sequence, as int32 on the device. A row sees itself and the keys before it.

    row_starts: [B + 1] the first row of each sequence, then R. lengths: [B] keys of each sequence, of which its rows
    are the last; 0 for rows that need not be computed. key_starts: [B + 1] the sums of lengths. table: [B, P] the pages
    of each sequence. most_rows, most_keys: of a sequence.
    """

    row_starts: Tensor
    lengths: Tensor
    key_starts: Tensor
    table: Tensor
    most_rows: int
    most_keys: int


@dataclass(frozen=True)
class FlashKernel:
    """A function for chains.

    name: as a user knows it. missing: says why it is not here; empty if it is. knows_softcap: whether it caps scores.
    attend: takes query [R, H*G, D], keys and values [pages, tokens, H, D], chains, the factor of the scores, the
    sliding window (0 for none) and the softcap (0 for none); returns [R, H*G, D].
    """

    name: str
    missing: Callable[[], str]
    knows_softcap: bool
    attend: Callable[[Tensor, Tensor, Tensor, Chains, float, int, float], Tensor]


def _by_package_3(
    query: Tensor, keys: Tensor, values: Tensor, chains: Chains, scale: float, window: int, softcap: float
) -> Tensor:
    return _function(PACKAGE_3, "flash_attn_with_kvcache")(
        query, keys, values, cache_seqlens=chains.lengths, page_table=chains.table, cu_seqlens_q=chains.row_starts,
        max_seqlen_q=chains.most_rows, softmax_scale=scale, causal=True, window_size=(window - 1, 0 if window else -1),
        softcap=softcap,
    )  # fmt: skip


def _by_package(
    query: Tensor, keys: Tensor, values: Tensor, chains: Chains, scale: float, window: int, softcap: float
) -> Tensor:
    return _function(PACKAGE, "flash_attn_varlen_func")(
        query, keys, values, chains.row_starts, chains.key_starts, chains.most_rows, chains.most_keys,
        softmax_scale=scale, causal=True, window_size=(window - 1, 0 if window else -1), softcap=softcap,
        block_table=chains.table,
    )  # fmt: skip


def _by_torch(
    query: Tensor, keys: Tensor, values: Tensor, chains: Chains, scale: float, window: int, softcap: float
) -> Tensor:
    assert not softcap, "torch's operator knows no softcap"
    near = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
    return _operator(
        query, keys, values, chains.row_starts, chains.key_starts, chains.most_rows, chains.most_keys, 0.0, True, False,
        scale=scale, seqused_k=chains.lengths, block_table=chains.table, **near,
    )[0]  # fmt: skip


def _missing_arguments() -> str:
    """Why torch's operator cannot read pages; empty if it can."""
    taken = {argument.name for argument in _operator._schema.arguments}
    lacking = [name for name in ("seqused_k", "block_table", "window_size_left") if name not in taken]
    return f"that of torch {torch.__version__} takes no {', '.join(lacking)}" if lacking else ""


PACKAGES = ("FlashAttention-3", "flash-attn")
KERNELS = (
    FlashKernel(PACKAGES[0], partial(_not_installed, PACKAGE_3), True, _by_package_3),
    FlashKernel(PACKAGES[1], partial(_not_installed, PACKAGE), True, _by_package),
    FlashKernel("torch's FlashAttention", _missing_arguments, False, _by_torch),
)
