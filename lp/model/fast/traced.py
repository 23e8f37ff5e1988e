"""The forward on a CPU as a function of tensors alone, which can be compiled ahead of time.

The length of the prefix changes from step to step without changing a shape, so it is a tensor. Writing rows to the
cache and attention over it are one operator, into which a compiler need not look.

    R rows, N of them with logits, V vocabulary, L layers
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from lp.model.attention import MaskKey, Step
from lp.model.kernels import AttentionKind, LayerAttention, attend

_LIBRARY = torch.library.Library("lookahead", "DEF")
_LIBRARY.define(
    "tree_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, Tensor length, "
    "Tensor mask, str kind, float scale, int? sliding_window, float? softcap) -> Tensor"
)


def _tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    mask: Tensor,
    kind: str,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Writes the rows' key and value [1, H, R, D] into the cache's keys and values [1, H, capacity, D], behind the
    prefix; returns the attention [1, R, H*G, D] over prefix and rows. length: int64 [], on the CPU, as all is.
    """
    start = int(length)
    end = start + key.shape[2]
    keys[:, :, start:end] = key
    values[:, :, start:end] = value
    how = LayerAttention(scale, sliding_window, softcap)
    return attend(query, keys[:, :, :end], values[:, :, :end], mask, AttentionKind(kind), how)


_LIBRARY.impl("tree_attention", _tree_attention, "CompositeExplicitAutograd")


@torch.library.register_fake("lookahead::tree_attention", lib=_LIBRARY)
def _shape_of_tree_attention(query: Tensor, key: Tensor, value: Tensor, *others: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(kw_only=True)
class TracedStep(Step):
    """A step that is given as tensors alone.

    masks: all that the layers need. keys, values: the cache's, one tensor for each layer. length: int64 [], the
    prefix's length.
    """

    masks: dict[MaskKey, Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    length: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        mask = self.masks[how.sliding_window, query.shape[1] // key.shape[1]]
        return torch.ops.lookahead.tree_attention(
            query, key, value, self.keys[layer], self.values[layer], self.length, mask,
            str(self.kind), how.scale, how.sliding_window, how.softcap,
        )  # fmt: skip


class RowsOnly(Cache):
    """A cache that returns a layer's own rows alone, as the operator reads the prefix from the real cache."""

    def __init__(self, num_layers: int):
        super().__init__(layers=[])
        self.num_layers = num_layers

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    @property
    def is_compileable(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.num_layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


class TracedForward(nn.Module):
    """A model's forward over a tree's rows, whose inputs are all tensors."""

    def __init__(self, model: PreTrainedModel, kind: AttentionKind, mask_keys: list[MaskKey]):
        """mask_keys: the masks that the layers need, in the order in which `forward` is given them."""
        super().__init__()
        self.model = model
        self.kind = kind
        self.mask_keys = mask_keys
        self.num_layers: int = model.config.get_text_config(decoder=True).num_hidden_layers

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        answered: Tensor,
        length: Tensor,
        masks: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """tokens, positions: [R] int64. answered: [N] the rows whose logits are needed. length: int64 [], the
        prefix's length. masks: as TreeStep.mask makes them. keys, values: L tensors [1, H, capacity, D], into which
        the rows are written. Returns float32 logits [N, V].
        """
        by_key = dict(zip(self.mask_keys, masks, strict=True))
        step = TracedStep(self.kind, masks=by_key, keys=keys, values=values, length=length)
        output = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            past_key_values=RowsOnly(self.num_layers),
            use_cache=True,
            logits_to_keep=answered,
            step=step,
        )
        return output.logits[0].float()
