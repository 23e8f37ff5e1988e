"""Tree attention, as an attention function of transformers' AttentionInterface.

A row sees the whole cached prefix, its own ancestors and itself. In a sliding-window layer it sees only those of them
that are less than the window's size away. The step reaches the function as an argument of the model's forward. Knows
nothing of how attention is computed: that is in lp/model/kernels.py.

The rows of several sequences go through the model together; only in attention is each sequence by itself.

    R rows of a step, H key/value heads, G query heads for each of them, D head dimension
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lp.kv_cache.cache import KVCache
from lp.model.kernels import AttentionKind, LayerAttention, UnsupportedAttention, attend

NAME = "token_tree"
# Arguments that models pass to an attention function and that tree attention may ignore.
UNDERSTOOD = {
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "is_causal",
    "layer_idx", "cache_position", "logits_to_keep",
}  # fmt: skip
# A mask depends on two facts about a layer: its sliding window, and its number of query heads for each key/value head.
MaskKey = tuple[int | None, int]


@dataclass
class AttentionSettings:
    """How attention is computed.

    kind: see AttentionKind. prefill_chunk: the most rows of a prompt in one forward, which bounds attention's memory;
    None takes 2,048 with fused kernels on a GPU, and 512 elsewhere.
    """

    kind: AttentionKind = AttentionKind.auto
    prefill_chunk: int | None = None


@dataclass
class Step(ABC):
    """What all layers share in one forward: which keys each row sees. Every forward gets a new one.

    incoming, outgoing: hidden states [1, R, hidden] between the stages of a pipeline. layers_seen, windows_seen: the
    layers that have called tree attention so far, and their sliding windows.
    """

    kind: AttentionKind
    incoming: Tensor | None = None
    outgoing: Tensor | None = None
    layers_seen: list[int] = field(default_factory=list)
    windows_seen: set[int | None] = field(default_factory=set)

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """Writes the rows' key and value to the cache and computes one layer's attention over prefix and rows: query
        [1, H*G, R, D], key and value [1, H, R, D] -> [1, R, H*G, D].
        """


@dataclass
class TreeRows:
    """The rows of one sequence in a step, and which keys each of them sees.

    cache: that of the sequence, to which the rows are written behind the prefix. cached: length of the prefix.
    positions: [R] the rows' positions. visibility: [R, R] bool. masks: those made so far.
    """

    cache: KVCache
    cached: int
    positions: Tensor
    visibility: Tensor
    dtype: torch.dtype
    masks: dict[MaskKey, Tensor] = field(default_factory=dict)

    def mask(self, sliding_window: int | None, group: int) -> Tensor:
        """Additive mask [G*R, M], repeated for each of G = `group` query heads: 0 where a row sees a key, else -inf.

        It covers the last M keys: the rows' own, and in a sliding-window layer also the keys of the prefix that some
        row may see. Each mask is made when a layer first needs it.
        """
        if (sliding_window, group) not in self.masks:
            visible = self.visibility
            if sliding_window is not None:
                num_near = min(self.cached, sliding_window - 1)
                near = torch.arange(self.cached - num_near, self.cached, device=visible.device)
                keys = torch.cat([near, self.positions])
                visible = torch.cat([visible.new_ones(len(visible), num_near), visible], dim=1)
                visible = visible & (self.positions[:, None] - keys[None, :] < sliding_window)
            mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
            mask = mask.masked_fill_(~visible, float("-inf")).repeat(group, 1)
            self.masks[sliding_window, group] = mask
        return self.masks[sliding_window, group]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: AttentionKind, how: LayerAttention
    ) -> Tensor:
        """See Step; for the rows of this sequence alone."""
        mask = self.mask(how.sliding_window, query.shape[1] // key.shape[1])
        keys, values = self.cache.update(key, value, layer)
        return attend(query, keys, values, mask, kind, how)


@dataclass(kw_only=True)
class TreeStep(Step):
    """A step of one or more sequences, each of which sees its own prefix and its own rows.

    parts: the rows of each sequence, one sequence's behind the other's.
    """

    parts: list[TreeRows]

    @property
    def positions(self) -> Tensor:
        """[R] of all rows."""
        return torch.cat([part.positions for part in self.parts])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        sizes = [len(part.positions) for part in self.parts]
        queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
        of_parts = zip(self.parts, queries, keys, values, strict=True)
        return torch.cat([part.attend(layer, q, k, v, self.kind, how) for part, q, k, v in of_parts], dim=1)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Step,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others,
) -> tuple[Tensor, None]:
    """query [1, H*G, R, D], key and value [1, H, R, D], of the step's rows alone -> [1, R, H*G, D], None.

    Raises UnsupportedAttention for an argument that tree attention does not know.
    """
    unknown = [name for name, given in others.items() if name not in UNDERSTOOD and given is not None]
    if unknown:
        raise UnsupportedAttention(
            f"its attention uses {', '.join(sorted(unknown))}, which tree attention does not know"
        )
    layer = getattr(module, "layer_idx", -1)
    step.layers_seen.append(layer)
    step.windows_seen.add(sliding_window)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return step.attend(layer, query, key, value, LayerAttention(scale, sliding_window, softcap or None)), None


def register() -> None:
    """Registers tree attention with transformers under `NAME`. A second call changes nothing."""
    AttentionInterface.register(NAME, tree_attention)
