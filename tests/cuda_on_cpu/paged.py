"""A model's own operations as a forward over the arena, in place of fused kernels, whose interpretation takes long.

Like those, it is a function of a step's tensors alone: the host never reads a length or a page, so one captured forward
serves every sequence. Attention is in two parts, as in lp/model/kernels.py: the prefix in the arena, and the rows' own
keys, which are written to the arena as well.

    R rows, N of them with logits, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.kv_cache.arena import Arena
from lp.kv_cache.cache import PAGE, RowsOnly
from lp.model.attention import MaskKey, Step
from lp.model.causal import CausalModel
from lp.model.current_step import running
from lp.model.fast_forward import BeforeAttention, SequenceRows
from lp.model.gpu.product_times import Timer
from lp.model.gpu.step_tensors import StepTensors
from lp.model.kernels import GPU_KINDS, AttentionKind, LayerAttention, UnsupportedAttention, masked_part, merge
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

    @property
    def positions(self) -> Tensor:
        return self.given.positions

    def mask(self, key: MaskKey) -> Tensor:
        if key not in self.masks:
            seen = self.given.visibility
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self.masks[key] = mask.repeat(key[-1], 1)
        return self.masks[key]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention, is_shared: bool = False
    ) -> Tensor:
        if obstacle := _obstacle(key, value, how):
            raise UnsupportedAttention(obstacle)
        for store, rows in () if is_shared else ((self.arena.keys[layer], key), (self.arena.values[layer], value)):
            store.flatten(0, 1).index_copy_(0, self.given.slots, rows[0].transpose(0, 1))
        if self.before_attention is not None:
            self.before_attention(layer)
        mask = self.mask((how.sliding_window, how.chunk_size, query.shape[1] // key.shape[1]))
        tail = masked_part(query, key, value, mask, how.scale)
        return merge(*self._prefix_part(query, layer, how.scale), *tail).transpose(1, 2).contiguous()

    def _prefix_part(self, query: Tensor, layer: int, scale: float) -> tuple[Tensor, Tensor]:
        """[1, H*G, R, D] and log-sum-exp [1, H*G, R] over the prefixes, by torch's FlashAttention."""
        given, stores = self.given, (self.arena.keys[layer], self.arena.values[layer])
        sizes = query.shape[2], given.block_table.shape[1] * PAGE
        out, sums, *_ = torch.ops.aten._flash_attention_forward.default(
            query[0].transpose(0, 1), *stores, given.row_starts, given.row_starts, *sizes, 0.0, False, False,
            scale=scale, seqused_k=given.lengths, block_table=given.block_table,
        )  # fmt: skip
        # FlashAttention-2 says +inf where there are no keys; a merge with that would drop the other part.
        sums = sums.nan_to_num(nan=math.nan, posinf=-math.inf, neginf=-math.inf)
        return out.transpose(0, 1)[None], sums[None]


def _obstacle(key: Tensor, value: Tensor, how: LayerAttention) -> str:
    """Why a GPU's two parts cannot compute a layer's attention; empty if they can."""
    if how.softcap:
        return "the scores of a layer are soft-capped"
    if how.sinks is not None:
        return "a layer has sinks"
    if not how.sees_all:
        return "a layer has a sliding window or chunks"
    if key.shape[3] != value.shape[3]:
        return f"a layer's keys have {key.shape[3]} dimensions and its values {value.shape[3]}"
    return ""


class PagedForward:
    """A model's forward over a step's tensors. arena: holds the keys and values of all its sequences."""

    is_invariant, incoming_width, gives_logits, prompts = False, None, True, None

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
        sequences: Sequence[SequenceRows] = (),
        is_long: bool = False,
    ) -> Tensor:
        """See ArenaForward."""
        step = PagedStep(
            self.kind, given=given, arena=self.arena, dtype=self.model.dtype, before_attention=before_attention
        )
        with running(step):
            output = self.model(
                input_ids=given.tokens[None],
                position_ids=given.positions[None],
                past_key_values=RowsOnly(self.arena.num_layers, given.positions),
                use_cache=True,
                logits_to_keep=max(1, answered) if isinstance(answered, int) else answered,  # 0 would mean all of them
            )
        logits = output.logits[0]
        found = logits[1:] if isinstance(answered, int) and answered == 0 else logits
        return found.float() if out is None else out.copy_(found)

    def differs_after_long(self, num_rows: int) -> bool:
        """See ArenaForward."""
        return False


def make_paged(
    model: CausalModel, arena: Arena, is_invariant: bool = False, timer: Timer | None = None
) -> PagedForward:
    """As make_fused. Raises Inexpressible for what these operations cannot do."""
    is_stage = not (model.is_first_stage and model.is_last_stage)
    if is_invariant or is_stage or model.attention_kind not in GPU_KINDS:
        raise Inexpressible("this stand-in for fused kernels has attention in two parts, no stages and no invariance")
    return PagedForward(model.model, arena, model.attention_kind)
