"""Stands for the package flash-attn: its two functions that are used here, with those arguments alone."""

from __future__ import annotations

import importlib.machinery
import types
from typing import Any

import torch
from torch import Tensor

from tests.cuda_on_cpu.operators import aten


def make() -> types.ModuleType:
    module: Any = types.ModuleType("flash_attn")
    module.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, softmax_scale: float,
    return_softmax_lse: bool, block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of one sequence: q [1, R, H*G, D], the others [1, C, H, D], or [pages, tokens, H, D] with a table."""
    assert return_softmax_lse and q.stride(3) == k_cache.stride(3) == 1 and len(q) == len(cache_seqlens) == 1
    ends = torch.arange(2, dtype=torch.int32, device=q.device)
    keys, values = (k_cache[0], v_cache[0]) if block_table is None else (k_cache, v_cache)
    most = keys.shape[0] if block_table is None else block_table.shape[1] * keys.shape[1]
    table = {} if block_table is None else {"block_table": block_table}
    out, sums, *_ = aten._flash_attention_forward.default(
        q[0], keys, values, ends * q.shape[1], ends * most, q.shape[1], most, 0.0, False, False,
        scale=softmax_scale, seqused_k=cache_seqlens, **table,
    )  # fmt: skip
    return out[None], sums[None]


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, softmax_scale: float, return_attn_probs: bool, block_table: Tensor,
) -> tuple[Tensor, Tensor, None]:  # fmt: skip
    """Of several sequences: q [R, H*G, D], k and v [pages, tokens, H, D]. Lengths are differences of cu_seqlens_k."""
    assert return_attn_probs and len(cu_seqlens_k) == len(cu_seqlens_q) == len(block_table) + 1
    assert cu_seqlens_k.dtype == torch.int32
    out, sums, *_ = aten._flash_attention_forward.default(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, False, False,
        scale=softmax_scale, seqused_k=cu_seqlens_k[1:] - cu_seqlens_k[:-1], block_table=block_table,
    )  # fmt: skip
    return out, sums, None
