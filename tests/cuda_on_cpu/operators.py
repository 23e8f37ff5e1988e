"""What operators do on a GPU: those that the CPU lacks, those that the host waits for, and how many kernels they run.

FlashAttention-2's operator is an oracle, with the signature, types and strides that the real one insists on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, max_q: int, max_k: int,
    dropout: float, is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """FlashAttention-2 over one sequence with as many keys as `seqused_k` says.

    query: [R, H*G, D]. key, value: [C, H, D]. ends_q, ends_k: int32 [2]. seqused_k: int32 [1]. Returns the attention
    [R, H*G, D] and its log-sum-exp [H*G, R]. No keys give 0 and +infinity, as in the real one.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        assert tensor.dtype in HALF and tensor.dtype == query.dtype, f"{name}: FlashAttention takes half precision only"
        assert tensor.dim() == 3 and tensor.stride(2) == 1, f"{name}: the last dimension must be contiguous"
        assert tensor.shape[2] == query.shape[2], f"{name}: query, key and value have one head dimension"
    assert query.shape[2] % 8 == 0 and query.shape[2] <= 256, "the head dimension is a multiple of 8 up to 256"
    assert key.shape == value.shape and query.shape[1] % key.shape[1] == 0
    for ends, length in ((ends_q, query.shape[0]), (ends_k, key.shape[0])):
        assert ends.dtype == torch.int32 and ends.is_contiguous() and ends.tolist() == [0, length]
    assert max_q == query.shape[0] and max_k == key.shape[0]
    assert dropout == 0 and not is_causal and not return_debug_mask
    assert seqused_k is not None and seqused_k.dtype == torch.int32 and seqused_k.shape == (1,)
    out, sums = attention(query, key[: int(seqused_k)], value[: int(seqused_k)], scale)
    return out, sums, torch.zeros(2, dtype=torch.int64), torch.zeros(0), torch.zeros(0)


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """[R, H*G, D] and log-sum-exp [H*G, R], in float32 inside, as FlashAttention-2 rounds."""
    if len(key) == 0:
        return torch.zeros_like(query), torch.full(query.shape[1::-1], torch.inf)
    repeat = query.shape[1] // key.shape[1]
    keys, values = (part.float().repeat_interleave(repeat, dim=1) for part in (key, value))
    factor = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    scores = torch.einsum("rhd,chd->hrc", query.float(), keys) * factor
    out = torch.einsum("hrc,chd->rhd", scores.softmax(dim=-1), values)
    return torch.empty_like(query).copy_(out), scores.logsumexp(dim=-1)  # laid out as the query is


def _histogram(values: Tensor, *bounds: Any) -> Tensor:
    return torch.histc(values.float(), *bounds).to(values.dtype)


def _softmax(values: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return aten._softmax(values.float() if half_to_float else values, dim, False)


_pinned: list[StorageWeakRef] = []


def _pin(values: Tensor, device: Any = None) -> Tensor:
    """A copy in memory that is remembered as pinned."""
    _pinned[:] = [one for one in _pinned if not one.expired()]
    copy = values.clone()
    _pinned.append(StorageWeakRef(copy.untyped_storage()))
    return copy


def is_pinned(tensor: Tensor) -> bool:
    """Whether a tensor of the host lies in pinned memory, from which and to which a GPU copies without the host."""
    return any(one.cdata == tensor.untyped_storage()._cdata and not one.expired() for one in _pinned)


# By operator, what stands for it.
IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {
    aten._flash_attention_forward.default: flash_attention,
    aten._softmax.default: _softmax,
    aten.histc.default: _histogram,
    aten._pin_memory.default: _pin,
}
# The host waits for the result of these, as a shape or a number depends on it.
SYNCING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.is_nonzero.default,
    aten._unique2.default, aten.unique_consecutive.default, aten.bincount.default, aten.equal.default,
    aten.repeat_interleave.Tensor,
}  # fmt: skip

# The kernels that CUDA runs for an operator, where it is not one.
LAUNCHES: dict[Any, int] = {
    aten.logsumexp.default: 8,  # amax, abs, equal, masked_fill, sub, exp, sum, log, add: one of them in place of two
    aten._flash_attention_forward.default: 1,
    aten.sort.default: 2, aten.sort.stable: 2, aten.argsort.default: 2, aten.argsort.stable: 2,
    aten.topk.default: 2, aten.cumsum.default: 1,
    aten.baddbmm.default: 2,  # a copy of the summand, then the product
    aten._unsafe_view.default: 0,
    aten.empty.memory_format: 0, aten.empty_like.default: 0, aten.empty_strided.default: 0,
    aten.new_empty.default: 0, aten.new_empty_strided.default: 0, aten._local_scalar_dense.default: 0,
}  # fmt: skip


def implementation(func: Any) -> Callable[..., Any]:
    """What does an operator's work on the CPU."""
    return IMPLEMENTATIONS.get(func) or func


def num_launches(func: Any) -> int:
    """The number of kernels that a GPU runs for an operator that is no view."""
    return LAUNCHES.get(func, 1)
