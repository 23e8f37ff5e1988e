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
    seqused_k: Tensor | None = None, block_table: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """FlashAttention-2 over B sequences, each with as many keys as `seqused_k` says.

    query: [R, H*G, D]. key, value: [C, H, D], or [pages, tokens, H, D] with a table of pages, int32 [B, P]. ends_q,
    ends_k: int32 [B + 1], of which only the starts of keys are read. seqused_k: int32 [B]. Returns the attention
    [R, H*G, D] and its log-sum-exp [H*G, R]. No keys give 0 and +infinity, as in the real one.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        assert tensor.dtype in HALF and tensor.dtype == query.dtype, f"{name}: FlashAttention takes half precision only"
        assert tensor.dim() == (3 if name == "query" or block_table is None else 4), f"{name}: its dimensions"
        assert tensor.stride(-1) == 1, f"{name}: the last dimension must be contiguous"
        assert tensor.shape[-1] == query.shape[2], f"{name}: query, key and value have one head dimension"
    assert query.shape[2] % 8 == 0 and query.shape[2] <= 256, "the head dimension is a multiple of 8 up to 256"
    assert key.shape == value.shape and query.shape[1] % key.shape[-2] == 0
    assert seqused_k is not None and seqused_k.dtype == torch.int32 and seqused_k.dim() == 1
    num_sequences = len(seqused_k)
    for ends in (ends_q, ends_k):
        assert ends.dtype == torch.int32 and ends.is_contiguous() and ends.shape == (num_sequences + 1,)
    assert ends_q[0] == 0 and ends_q[-1] == max_q == query.shape[0] if num_sequences == 1 else True
    assert dropout == 0 and not is_causal and not return_debug_mask
    if block_table is not None:
        assert key.shape[1] % 256 == 0, "the page size is a multiple of 256"
        assert block_table.dtype == torch.int32 and block_table.stride(-1) == 1 and len(block_table) == num_sequences
        assert max_k == block_table.shape[1] * key.shape[1]
    out, sums = torch.empty_like(query), query.new_empty(query.shape[1::-1], dtype=torch.float32)
    for number, length in enumerate(seqused_k.tolist()):
        assert length <= max_k
        rows = slice(*ends_q[number : number + 2].tolist())
        if block_table is None:
            start = int(ends_k[number])
            keys, values = key[start : start + length], value[start : start + length]
        else:
            pages = block_table[number, : -(-length // key.shape[1])]
            keys, values = (part[pages.long()].flatten(0, 1)[:length] for part in (key, value))
        out[rows], sums[:, rows] = attention(query[rows], keys, values, scale)
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
