"""Attention layers of families that compute attention in their own code: what takes their place calls tree attention.

A layer's weights stay those of the layer that it stands for, and so does its forward where no step is running.

ALiBi adds a number to each score that depends on the head and the position of the key. Here that number is a part of
the product of query and key: keys have further dimensions that hold it, and queries have ones there. So the kernels of
attention need not know of it. It is kept as a sum of three numbers in the model's format, as one of 16 bits is too
coarse for long texts.

    R rows of a step, H query heads, D head dimension
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from lp.model.attention import Step, tree_attention
from lp.model.current_step import current_step

# Dimensions that keys have for ALiBi, and how many of them are used. The rest keeps their number a multiple of 8.
BIAS_DIMS, BIAS_PARTS = 8, 3


class OwnAttention(nn.Module, ABC):
    """Takes the place of a layer's attention, and computes the same with its weights for the rows of a step."""

    def __init__(self, attention: nn.Module, layer: int, biases: Tensor | None):
        """biases: see `bias_table`; None in a model without ALiBi."""
        super().__init__()
        self.attention: Any = attention
        self.layer_idx = layer
        self.biases = biases
        self.ones = None if biases is None else biases.new_ones(1, 1, 1, BIAS_DIMS)

    def forward(self, hidden_states: Tensor, *args: Any, **others: Any) -> tuple[Tensor, Any]:
        """hidden_states: [1, R, hidden], and so is the result."""
        if current_step() is None:
            return self.attention(hidden_states, *args, **others)
        return self.compute(hidden_states, *args, **others), None

    @abstractmethod
    def compute(self, hidden: Tensor, *args: Any, **others: Any) -> Tensor:
        """[1, R, hidden] -> [1, R, hidden], with the other arguments of the layer that it stands for."""

    @staticmethod
    def alibi(attention: Any, num_positions: int) -> Tensor | None:
        """What a layer of a family adds to the products of queries with keys at each position, before they are scaled:
        [H, positions], or None without ALiBi.
        """
        return None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, sliding_window: int | None = None
    ) -> Tensor:
        """Tree attention of [1, heads, R, D] each -> [1, R, H * D]."""
        if self.biases is not None and self.ones is not None:
            step: Step = current_step()
            own = embedding(step.positions, self.biases).unflatten(1, (-1, BIAS_DIMS)).transpose(0, 1)[None]
            query = torch.cat([query, self.ones.expand(*query.shape[:3], -1)], dim=3)
            key = torch.cat([key, own], dim=3)
        out, _ = tree_attention(self, query, key, value, None, scaling=scaling, sliding_window=sliding_window)
        return out.flatten(2)


def bias_table(alibi: Tensor, like: Tensor) -> Tensor:
    """What keys at each position have for ALiBi: [H, positions] -> [positions, H * BIAS_DIMS], as `like`."""
    parts, rest = [], alibi.T
    for _ in range(BIAS_PARTS):
        parts.append(rest.to(like.dtype))
        rest = rest - parts[-1].to(rest.dtype)
    parts += [torch.zeros_like(parts[0])] * (BIAS_DIMS - BIAS_PARTS)
    return torch.stack(parts, dim=2).flatten(1).to(like.device)


class OfFalcon(OwnAttention):
    @staticmethod
    def alibi(attention: Any, num_positions: int) -> Tensor | None:
        if not attention.config.alibi:
            return None
        build: Any = _file_of(attention)["build_alibi_tensor"]
        return build(torch.ones(1, num_positions, dtype=torch.long), attention.num_heads, torch.float32)[:, 0]

    def compute(self, hidden: Tensor, *args: Any, position_embeddings: tuple[Tensor, Tensor], **others: Any) -> Tensor:
        own = self.attention
        query, key, value = (heads.transpose(1, 2) for heads in self._heads(own.query_key_value(hidden)))
        if self.biases is None:
            query, key = _file_of(own)["apply_rotary_pos_emb"](query, key, *position_embeddings)
        else:  # each head of keys has a bias of its own
            key, value = (part.repeat_interleave(own.num_heads // part.shape[1], dim=1) for part in (key, value))
        return own.dense(self.attend(query, key, value, own.inv_norm_factor))

    def _heads(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1, R, N] -> query, key and value [1, R, heads, D]."""
        own = self.attention
        if own.new_decoder_architecture:
            groups = joined.unflatten(2, (own.num_kv_heads, -1, own.head_dim))
            return groups[:, :, :, :-2].flatten(2, 3), groups[:, :, :, -2], groups[:, :, :, -1]
        if own.multi_query:
            heads = joined.unflatten(2, (-1, own.head_dim))
            return heads[:, :, :-2], heads[:, :, -2:-1], heads[:, :, -1:]
        query, key, value = joined.unflatten(2, (-1, 3, own.head_dim)).unbind(3)
        return query, key, value


class OfBloom(OwnAttention):
    @staticmethod
    def alibi(attention: Any, num_positions: int) -> Tensor | None:
        build: Any = _file_of(attention)["build_alibi_tensor"]
        biases = build(torch.ones(1, num_positions, dtype=torch.long), attention.num_heads, torch.float32)[:, 0]
        return biases.double() / attention.inv_norm_factor

    def compute(self, hidden: Tensor, residual: Tensor, *args: Any, **others: Any) -> Tensor:
        own = self.attention
        joined = own.query_key_value(hidden).unflatten(2, (own.num_heads, 3, own.head_dim))
        query, key, value = (heads.transpose(1, 2) for heads in joined.unbind(3))
        return own.dense(self.attend(query, key, value, own.inv_norm_factor)) + residual


class OfMpt(OwnAttention):
    @staticmethod
    def alibi(attention: Any, num_positions: int) -> Tensor | None:
        biases = _file_of(attention)["build_mpt_alibi_tensor"](attention.n_heads, num_positions)[:, 0]
        return biases.double() / attention.softmax_scale

    def compute(self, hidden: Tensor, *args: Any, **others: Any) -> Tensor:
        own = self.attention
        joined = own.Wqkv(hidden)
        if own.clip_qkv:
            joined = joined.clamp(min=-own.clip_qkv, max=own.clip_qkv)
        query, key, value = (
            part.unflatten(2, (own.n_heads, own.head_dim)).transpose(1, 2) for part in joined.chunk(3, dim=2)
        )
        return own.out_proj(self.attend(query, key, value, own.softmax_scale))


class OfGptJ(OwnAttention):
    """Rotary embeddings of pairs of neighbouring numbers, in the first dimensions of each head."""

    def compute(self, hidden: Tensor, *args: Any, position_ids: Tensor, **others: Any) -> Tensor:
        own = self.attention
        query, key, value = self.project(hidden)
        sin, cos = embedding(position_ids, own.embed_positions).to(key.dtype)[:, :, None].chunk(2, dim=3)
        rotary = own.rotary_dim or own.head_dim
        query, key = (_rotated(part, sin, cos, rotary).transpose(1, 2) for part in (query, key))
        return own.out_proj(self.attend(query, key, value.transpose(1, 2), 1 / own.scale_attn))

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [1, R, H, D]."""
        own = self.attention
        query, key, value = (
            part(hidden).unflatten(2, (own.num_attention_heads, own.head_dim))
            for part in (own.q_proj, own.k_proj, own.v_proj)
        )
        return query, key, value


class OfCodeGen(OfGptJ):
    """One projection, whose outputs lie in four groups of heads."""

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = self.attention
        groups = own.qkv_proj(hidden).unflatten(2, (4, 3, own.num_attention_heads // 4, own.head_dim))
        query, value, key = (part.flatten(2, 3) for part in groups.unbind(3))
        return query, key, value


class OfGptNeo(OwnAttention):
    def compute(self, hidden: Tensor, *args: Any, **others: Any) -> Tensor:
        own = self.attention
        query, key, value = (
            part(hidden).unflatten(2, (own.num_heads, own.head_dim)).transpose(1, 2)
            for part in (own.q_proj, own.k_proj, own.v_proj)
        )
        window = own.config.window_size if own.attention_type == "local" else None
        return own.out_proj(self.attend(query, key, value, 1.0, window))


def _rotated(heads: Tensor, sin: Tensor, cos: Tensor, num_dims: int) -> Tensor:
    """[1, R, H, D] whose first dimensions are turned by pairs; sin and cos: [1, R, 1, num_dims / 2]."""
    first, second = heads[..., :num_dims].unflatten(3, (-1, 2)).unbind(4)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=4).flatten(3)
    return torch.cat([turned, heads[..., num_dims:]], dim=3)


def _file_of(attention: nn.Module) -> dict[str, Any]:
    """What is defined in the file of a layer's class."""
    return vars(sys.modules[type(attention).__module__])


# By the class in transformers: what takes its place, and the name under which it knows its layer.
KINDS: dict[str, tuple[type[OwnAttention], str]] = {
    "FalconAttention": (OfFalcon, "layer_idx"),
    "BloomAttention": (OfBloom, "layer_idx"),
    "MptAttention": (OfMpt, "layer_idx"),
    "GPTJAttention": (OfGptJ, "layer_idx"),
    "CodeGenAttention": (OfCodeGen, "layer_idx"),
    "GPTNeoSelfAttention": (OfGptNeo, "layer_id"),
}


def replace_attention(model: PreTrainedModel, max_length: int) -> None:
    """Puts layers that call tree attention in the place of those that do not, with the same weights.

    max_length: the most tokens of a sequence.
    """
    found = [(name, part) for name, part in model.named_modules() if type(part).__name__ in KINDS]
    if found:  # as it is by default: eager attention of Falcon adds ALiBi twice
        model.config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    biases: Tensor | None = None
    for number, (name, part) in enumerate(found):
        kind, index = KINDS[type(part).__name__]
        if number == 0 and (alibi := kind.alibi(part, max_length)) is not None:
            biases = bias_table(alibi, torch.empty(0, dtype=model.dtype, device=model.device))
        model.set_submodule(name, kind(part, getattr(part, index), biases))


def restore_attention(model: PreTrainedModel) -> None:
    """Puts a model's own layers back."""
    for name, part in [*model.named_modules()]:
        if isinstance(part, OwnAttention):
            model.set_submodule(name, part.attention)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Sets the attention function of transformers that a model's layers ask for, if they ask for one."""
    if not any(isinstance(part, OwnAttention) for part in model.modules()):
        model.set_attn_implementation(name)
