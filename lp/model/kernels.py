"""Attention of a tree's rows over the cached prefix and one another, by the kernels that are available.

Most kinds compute it in two parts and merge them in float32 by their log-sum-exp. One part is the prefix, which every
row sees whole and which therefore needs no mask; the other is the rows' own keys, with a mask. So no mask is as long as
the prefix, keys and values are neither repeated for grouped heads nor copied, and kernels without masks can compute the
long part. Knows nothing of models or caches.

    R rows, S = cached prefix + R, H key/value heads, G query heads for each of them, D head dimension,
    M last keys, those that a mask covers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from lp.model.gpu import flash

_cpu_kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class AttentionKind(StrEnum):
    """How attention is computed.

    auto: two_part on a CPU; flash or varlen on a GPU where they can be used, else sdpa. two_part: in two parts, both by
    torch's CPU kernel. flash, varlen: in two parts on a GPU, the prefix by flash-attn or by torch's FlashAttention.
    sdpa: in one part, by torch's fused kernels with a mask. eager: in one part, by plain matrix products, the
    reference.
    """

    auto = "auto"
    two_part = "two_part"
    flash = "flash"
    varlen = "varlen"
    sdpa = "sdpa"
    eager = "eager"


# Two parts, of which a GPU's kernels compute the prefix.
GPU_KINDS = (AttentionKind.flash, AttentionKind.varlen)


class UnsupportedAttention(ValueError):
    """A layer or a user asks for attention that is not available here."""


@dataclass(frozen=True)
class LayerAttention:
    """How a layer's attention is to be computed.

    scale: factor of the scores. sliding_window: a row sees keys that are less than this away; None is all of them.
    softcap: scores s become softcap * tanh(s / softcap), as in Gemma 2. chunk_size: a row sees keys of its own chunk of
    so many positions, as in Llama 4; None is all of them. sinks: [H*G], for each query head the score of a further key,
    whose value is 0, that every row sees, as in gpt-oss.
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    chunk_size: int | None = None
    sinks: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def sees_all(self) -> bool:
        """Whether a row sees all of the prefix, however long it is."""
        return self.sliding_window is None and self.chunk_size is None


def resolve_kind(
    kind: AttentionKind, device: torch.device, dtype: torch.dtype, head_dims: Sequence[int]
) -> AttentionKind:
    """Resolves `auto` to the best kind that can be used here; returns any other kind unchanged.

    head_dims: of all layers. Raises UnsupportedAttention for a kind that cannot be used here.
    """
    if kind is AttentionKind.auto:
        usable = (AttentionKind.two_part, AttentionKind.flash, AttentionKind.varlen)
        return next((one for one in usable if not _obstacle(one, device, dtype, head_dims)), AttentionKind.sdpa)
    if obstacle := _obstacle(kind, device, dtype, head_dims):
        instead = resolve_kind(AttentionKind.auto, device, dtype, head_dims)
        raise UnsupportedAttention(
            f"attention={kind} cannot be used: {obstacle}; use attention=auto, which is {instead} here"
        )
    return kind


def _obstacle(kind: AttentionKind, device: torch.device, dtype: torch.dtype, head_dims: Sequence[int]) -> str:
    """The reason why a kind cannot be used; empty if it can be."""
    if kind is AttentionKind.two_part:
        return "" if device.type == "cpu" else "it is for the CPU"
    if kind not in GPU_KINDS:
        return ""
    missing = flash.missing_package() if kind is AttentionKind.flash else ""
    return missing or next(filter(None, (flash.obstacle(device, dtype, dim) for dim in head_dims)), "")


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kind: AttentionKind, how: LayerAttention) -> Tensor:
    """query [1, H*G, R, D], key and value [1, H, S, D] -> [1, R, H*G, D].

    mask: [G*R, M] additive, for the last M keys, repeated for each of the G query heads. All rows see the keys before
    those; in a layer with a sliding window or chunks no row sees them.
    """
    num_before = key.shape[2] - mask.shape[1]
    if not how.sees_all:
        key, value, num_before = key[:, :, num_before:], value[:, :, num_before:], 0
    if kind in (AttentionKind.two_part, *GPU_KINDS) and not how.softcap and key.shape[3] == value.shape[3]:
        out = _in_parts(query, key, value, mask, kind, how, num_before)
    else:
        out = _in_one(query, key, value, mask, kind, how, num_before)
    return out.transpose(1, 2).contiguous()


def _in_one(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kind: AttentionKind, how: LayerAttention, num_before: int
) -> Tensor:
    """[1, H*G, R, D] by one softmax over all keys. A softcap and sinks need plain matrix products, as no kernel here
    supports them.
    """
    whole = pad(mask, (num_before, 0))
    folded = fold(query, key.shape[1])
    if kind is not AttentionKind.eager and not how.softcap and how.sinks is None:
        out = scaled_dot_product_attention(folded, key, value, attn_mask=whole, scale=how.scale)
    else:
        scores = folded @ key.transpose(2, 3) * how.scale
        if how.softcap:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        scores = scores + whole
        if how.sinks is not None:
            sinks = fold(_per_row(how.sinks, query), key.shape[1])
            scores = torch.cat([scores, sinks.to(scores.dtype)], dim=3)
        shares = scores.softmax(dim=-1, dtype=torch.float32)[..., : key.shape[2]]
        out = shares.to(query.dtype) @ value
    return out.reshape(1, query.shape[1], query.shape[2], value.shape[3])


def fold(query: Tensor, heads: int) -> Tensor:
    """[1, H*G, R, D] -> [1, H, G*R, D]: query heads that share a key/value head become further rows of one head.

    So keys and values need not be repeated.
    """
    return query.reshape(1, heads, -1, query.shape[3])


def _per_row(sinks: Tensor, query: Tensor) -> Tensor:
    """Sinks [H*G] as the scores [1, H*G, R, 1] of one more key."""
    return sinks[None, :, None, None].expand(1, -1, query.shape[2], 1)


def _in_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kind: AttentionKind, how: LayerAttention, num_before: int
) -> Tensor:
    """[1, H*G, R, D] by one softmax over the first `num_before` keys and one over the others."""
    scale = how.scale
    if kind is AttentionKind.two_part:
        folded = fold(query, key.shape[1])
        sinks = None if how.sinks is None else fold(_per_row(how.sinks, query), key.shape[1])[..., 0]
        if query.shape[2] == 1:  # a single row sees all keys
            return with_sinks(*_on_cpu(folded, key, value, None, scale), sinks)[0].reshape(query.shape)
        return _two_part(folded, key, value, mask, scale, num_before, sinks).reshape(query.shape)
    tail = masked_part(query, key[:, :, num_before:], value[:, :, num_before:], mask, scale)
    tail = with_sinks(*tail, None if how.sinks is None else _per_row(how.sinks, query)[..., 0])
    if num_before == 0:
        return tail[0].to(query.dtype)
    by_kernel = flash.prefix_by_package if kind is AttentionKind.flash else flash.prefix_by_torch
    keys, values = (part[:, :, :num_before].transpose(1, 2) for part in (key, value))
    prefix, sums = by_kernel(query.transpose(1, 2), keys, values, scale)
    return merge(prefix.transpose(1, 2), sums, *tail)


def _two_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, num_before: int, sinks: Tensor | None
) -> Tensor:
    """[1, H, G*R, D] for folded queries, on the CPU. sinks: [1, H, G*R]."""
    tail = with_sinks(*_on_cpu(query, key[:, :, num_before:], value[:, :, num_before:], mask, scale), sinks)
    if num_before == 0:
        return tail[0]
    return merge(*_on_cpu(query, key[:, :, :num_before], value[:, :, :num_before], None, scale), *tail)


def _on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """[1, H, G*R, D] and log-sum-exp [1, H, G*R] for folded queries, by torch's CPU kernel."""
    return _cpu_kernel(query, key, value, 0.0, False, attn_mask=mask, scale=scale)


def masked_part(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """[1, H*G, R, D] and log-sum-exp [1, H*G, R] over keys [1, H, M, D] with a mask [G*R, M]."""
    # Scaled within the product: before it is scaled, a score may be more than float16 holds.
    scores = torch.baddbmm(mask, fold(query, key.shape[1])[0], key[0].transpose(1, 2), alpha=scale)
    shares = scores.softmax(dim=-1, dtype=torch.float32)
    sums = scores.amax(dim=-1) - shares.amax(dim=-1).log()  # the largest share is exp(largest score - sum)
    out = shares.to(query.dtype) @ value[0]
    return out.view(query.shape), sums.view(query.shape[:3])


def with_sinks(out: Tensor, sums: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention [1, .., D] and log-sum-exp [1, ..] with one more key, whose scores [1, ..] are given and whose value is
    0; None is no such key.
    """
    if sinks is None:
        return out, sums
    own, other = sums.float(), sinks.float()
    return (out.float() * torch.sigmoid(own - other)[..., None]).to(out.dtype), torch.logaddexp(own, other)


def merge(prefix: Tensor, prefix_sums: Tensor, tail: Tensor, tail_sums: Tensor) -> Tensor:
    """Attention over the union of two sets of keys, from the attention [1, .., D] and log-sum-exp [1, ..] of each."""
    share = torch.sigmoid(tail_sums.float() - prefix_sums.float())[..., None]
    return torch.lerp(prefix.float(), tail.float(), share).to(prefix.dtype)
