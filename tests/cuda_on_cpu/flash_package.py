"""Stands for the packages flash-attn and FlashAttention-3: their functions that are used, with those arguments alone.

They compute in float32.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda_on_cpu.gpu import GpuTensor
from tests.cuda_on_cpu.operators import Seen, aten, over_pages


def install(monkeypatch: pytest.MonkeyPatch, name: str, *functions: Any) -> types.ModuleType:
    """A package with these functions, until the test ends."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for function in functions:
        setattr(module, function.__name__.removesuffix("_3"), function)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, softmax_scale: float, return_softmax_lse: bool
) -> tuple[Tensor, Tensor]:
    """Computes attention of one sequence without a mask: q [1, R, H*G, D], the others [1, C, H, D]."""
    assert return_softmax_lse
    sizes = q.shape[1], k_cache.shape[1]
    out, sums, *_ = aten._flash_attention_forward.default(
        q, k_cache, v_cache, None, None, *sizes, 0.0, False, False, scale=softmax_scale
    )
    return out, sums


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float, block_table: Tensor,
) -> Tensor:  # fmt: skip
    """Lengths are the differences of cu_seqlens_k."""
    assert cu_seqlens_k.dtype == torch.int32 and cu_seqlens_k[0].item() == 0
    lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    seen = _seen(causal, window_size, softcap)
    return _over_pages(q, k, v, cu_seqlens_q, lengths, block_table, max_seqlen_q, max_seqlen_k, softmax_scale, seen)


def flash_attn_with_kvcache_3(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, page_table: Tensor, cu_seqlens_q: Tensor,
    max_seqlen_q: int, softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float,
) -> Tensor:  # fmt: skip
    """FlashAttention-3 finds the most keys by the table."""
    most, seen = page_table.shape[1] * k_cache.shape[1], _seen(causal, window_size, softcap)
    return _over_pages(
        q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q, most, softmax_scale, seen
    )


def _seen(causal: bool, window_size: tuple[int, int], softcap: float) -> Seen:
    assert causal and (window_size == (-1, -1) or window_size[1] == 0)
    return Seen(causal, window_size[0], softcap)


def _over_pages(query: Tensor, *arguments: Any) -> Tensor:
    inner = [one.on_cpu if isinstance(one, GpuTensor) else one for one in (query, *arguments)]
    out, _ = over_pages(*inner)  # pyright: ignore[reportArgumentType]
    return GpuTensor(out, query.device)
