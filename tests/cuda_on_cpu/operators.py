"""What operators do on a GPU: those that the CPU lacks, those that the host waits for, and how many kernels they run.

FlashAttention-2's operator is an oracle, with the signature, types and strides that the real one insists on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor | None, ends_k: Tensor | None, max_q: int, max_k: int,
    dropout: float, is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None, seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """FlashAttention-2 over B sequences in pages (see `over_pages`), or without ends over one, [1, R, H*G, D]."""
    assert dropout == 0 and not return_debug_mask
    nothing = torch.zeros(2, dtype=torch.int64), torch.zeros(0), torch.zeros(0)
    if ends_q is None:
        check_types(query, key, value)
        assert ends_k is None and len(query) == 1 and (query.shape[1], key.shape[1]) == (max_q, max_k)
        assert not is_causal and seqused_k is None and block_table is None
        out, sums = attention(query[0], key[0], value[0], scale, Seen())
        return out[None], sums[None], *nothing
    assert ends_k is not None and ends_k.dtype == torch.int32 and ends_k.shape == ends_q.shape
    assert seqused_k is not None and block_table is not None
    window = -1 if window_size_left is None else window_size_left
    assert is_causal or window < 0
    out, sums = over_pages(
        query, key, value, ends_q, seqused_k, block_table, max_q, max_k, scale, Seen(is_causal, window)
    )
    return out, sums, *nothing


def check_types(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Fails for what FlashAttention does not take."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        assert tensor.dtype in HALF and tensor.dtype == query.dtype, f"{name}: FlashAttention takes half precision only"
        assert tensor.stride(-1) == 1, f"{name}: the last dimension must be contiguous"
        assert tensor.shape[-1] == query.shape[-1], f"{name}: query, key and value have one head dimension"
        strides = [tensor.stride(dim) for dim in range(tensor.dim() - 1) if tensor.shape[dim] > 1]
        is_aligned = not any(number % 8 for number in (tensor.storage_offset(), *strides))
        assert is_aligned, f"{name}: numbers are loaded from multiples of 16 bytes"
    assert query.shape[-1] % 8 == 0 and query.shape[-1] <= 256, "the head dimension is a multiple of 8 up to 256"
    assert key.shape == value.shape and query.shape[-2] % key.shape[-2] == 0


class Seen(NamedTuple):
    """Which keys a row sees: up to itself, as rows are the last of their keys; `left` keys before itself, if not -1."""

    is_causal: bool = False
    left: int = -1
    softcap: float = 0.0


def over_pages(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, lengths: Tensor, table: Tensor, most_rows: int,
    most_keys: int, scale: float | None, seen: Seen,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """FlashAttention over B sequences: attention [R, H*G, D] and its log-sum-exp [H*G, R].

    query: [R, H*G, D]. key, value: [pages, tokens, H, D]. starts: int32 [B + 1], of rows. lengths: int32 [B], of keys.
    table: int32 [B, P]. Rows without keys get 0 and +infinity, as in the real one.
    """
    check_types(query, key, value)
    num_sequences = len(lengths)
    assert query.dim() == 3 and key.dim() == 4 and key.shape[1] % 256 == 0, "the page size is a multiple of 256"
    assert lengths.dtype == starts.dtype == table.dtype == torch.int32 and table.stride(-1) == 1
    assert starts.is_contiguous() and starts.shape == (num_sequences + 1,) and len(table) == num_sequences
    assert starts[0] == 0 and most_rows >= int(starts.diff().max()) and most_keys <= table.shape[1] * key.shape[1]
    out, sums = torch.empty_like(query), query.new_empty(query.shape[1::-1], dtype=torch.float32)
    for number, length in enumerate(lengths.tolist()):
        assert length <= most_keys
        rows = slice(*starts[number : number + 2].tolist())
        pages = table[number, : -(-length // key.shape[1])]
        keys, values = (part[pages.long()].flatten(0, 1)[:length] for part in (key, value))
        out[rows], sums[:, rows] = attention(query[rows], keys, values, scale, seen)
    return out, sums


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None, seen: Seen) -> tuple[Tensor, Tensor]:
    """[R, H*G, D] and log-sum-exp [H*G, R], in float32 inside, as FlashAttention-2 rounds."""
    if len(key) == 0:
        return torch.zeros_like(query), torch.full(query.shape[1::-1], torch.inf)
    repeat = query.shape[1] // key.shape[1]
    keys, values = (part.float().repeat_interleave(repeat, dim=1) for part in (key, value))
    factor = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    scores = torch.einsum("rhd,chd->hrc", query.float(), keys) * factor
    if seen.softcap:
        scores = torch.tanh(scores / seen.softcap) * seen.softcap
    if seen.is_causal:
        distance = torch.arange(len(key) - len(query), len(key))[:, None] - torch.arange(len(key))
        hidden = (distance < 0) | ((distance > seen.left) & (seen.left >= 0))
        scores = scores.masked_fill(hidden, -torch.inf)
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
