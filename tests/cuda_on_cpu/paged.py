"""A model's own operations as a forward over the arena, in place of fused kernels, whose interpretation takes long.

Like those, it is a function of a step's tensors alone: the host never reads a length or a page, so one captured forward
serves every sequence. Attention is in two parts, as in lp/model/kernels.py: the prefix in the arena, and the rows' own
keys, which are written to the arena as well.

    R rows, N of them with logits, V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from lp.kv_cache.arena import Arena
from lp.kv_cache.cache import PAGE, RowsOnly
from lp.model.attention import MaskKey, Step
from lp.model.causal import CausalModel
from lp.model.fast_forward import BeforeAttention
from lp.model.gpu.prefix import Bounds
from lp.model.gpu.product_times import Timer
from lp.model.gpu.step_tensors import StepTensors
from lp.model.kernels import (
    GPU_KINDS,
    AttentionKind,
    LayerAttention,
    UnsupportedAttention,
    masked_part,
    merge,
    prefix_part,
)
from lp.model.program.record import Inexpressible


@dataclass(kw_only=True)
class PagedStep(Step):
    """A step whose keys and values lie in the arena.

    given: its inputs. masks: additive ones [G*R, R], as TreeStep makes them, each made once for all layers.
    before_attention: see FastForward.run_by_layer.
    """

    given: StepTensors
    arena: Arena
    dtype: torch.dtype
    masks: dict[MaskKey, Tensor] = field(default_factory=dict)
    before_attention: BeforeAttention | None = None

    @cached_property
    def bounds(self) -> Bounds:
        given, table = self.given, self.given.block_table
        keys = given.row_starts
        if self.kind is AttentionKind.flash and len(given.lengths) > 1:  # which knows lengths from these alone
            keys = pad(given.lengths.cumsum(0, dtype=torch.int32), (1, 0))
        return Bounds(given.row_starts, keys, given.lengths, table.shape[1] * PAGE, table)

    def mask(self, key: MaskKey) -> Tensor:
        if key not in self.masks:
            seen = self.given.visibility
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self.masks[key] = mask.repeat(key[1], 1)
        return self.masks[key]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        if obstacle := _obstacle(key, value, how):
            raise UnsupportedAttention(obstacle)
        for store, rows in ((self.arena.keys[layer], key), (self.arena.values[layer], value)):
            store.flatten(0, 1).index_copy_(0, self.given.slots, rows[0].transpose(0, 1))
        if self.before_attention is not None:
            self.before_attention(layer)
        mask = self.mask((how.sliding_window, query.shape[1] // key.shape[1]))
        tail = masked_part(query, key, value, mask, how.scale)
        stores = self.arena.keys[layer], self.arena.values[layer]
        prefix = prefix_part(query, *stores, self.bounds, self.kind, how.scale)
        return merge(*prefix, *tail).transpose(1, 2).contiguous()


def _obstacle(key: Tensor, value: Tensor, how: LayerAttention) -> str:
    """Why a GPU's two parts cannot compute a layer's attention; empty if they can."""
    if how.softcap:
        return "the scores of a layer are soft-capped"
    if how.sliding_window is not None:
        return "a layer has a sliding window"
    if key.shape[3] != value.shape[3]:
        return f"a layer's keys have {key.shape[3]} dimensions and its values {value.shape[3]}"
    return ""


class PagedForward:
    """A model's forward over a step's tensors. arena: holds the keys and values of all its sequences."""

    is_invariant, incoming_width, gives_logits = False, None, True

    def __init__(self, model: PreTrainedModel, arena: Arena, kind: AttentionKind):
        assert kind in GPU_KINDS, "other kinds know no arena"
        self.model, self.arena, self.kind = model, arena, kind
        self.output_width = model.config.get_text_config(decoder=True).vocab_size

    def __call__(
        self,
        given: StepTensors,
        answered: int | Tensor,
        before_attention: BeforeAttention | None = None,
        incoming: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See ArenaForward."""
        step = PagedStep(
            self.kind, given=given, arena=self.arena, dtype=self.model.dtype, before_attention=before_attention
        )
        output = self.model(
            input_ids=given.tokens[None],
            position_ids=given.positions[None],
            past_key_values=RowsOnly(self.arena.num_layers),
            use_cache=True,
            logits_to_keep=max(1, answered) if isinstance(answered, int) else answered,  # 0 would mean all of them
            step=step,
        )
        logits = output.logits[0]
        found = logits[1:] if isinstance(answered, int) and answered == 0 else logits
        return found.float() if out is None else out.copy_(found)


def make_paged(
    model: CausalModel, arena: Arena, is_invariant: bool = False, timer: Timer | None = None
) -> PagedForward:
    """As make_fused. Raises Inexpressible for what these operations cannot do."""
    is_stage = not (model.is_first_stage and model.is_last_stage)
    if is_invariant or is_stage or model.attention_kind not in GPU_KINDS:
        raise Inexpressible("this stand-in for fused kernels has attention in two parts, no stages and no invariance")
    return PagedForward(model.model, arena, model.attention_kind)
