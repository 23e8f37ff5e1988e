"""Tree attention, as an attention function of transformers' AttentionInterface.

A row sees the whole cached prefix, its own ancestors and itself. In a sliding-window layer it sees only those of them
that are less than the window's size away, and in a layer with chunks those of its own chunk of positions. The step
is that of the forward that is running (see current_step.py). Knows nothing of how attention is computed: that is in
lp/model/kernels.py.

The rows of several sequences go through the model together; only in attention is each sequence by itself.

    R rows of a step, H key/value heads, G query heads for each of them, D head dimension
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lp.kv_cache.cache import KVCache
from lp.kv_cache.recurrent import RecurrentStates
from lp.model.current_step import current_step
from lp.model.kernels import AttentionKind, LayerAttention, UnsupportedAttention, attend
from lp.model.recurrent.base import Piece, RecurrentLayer, split, walk
from lp.tree import NO_ROWS, TokenTree

NAME = "token_tree"
# The type of layers whose rows see keys of their own chunk alone.
CHUNKED = "chunked_attention"
# Arguments that models pass to an attention function and that tree attention may ignore.
UNDERSTOOD = {
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "is_causal",
    "layer_idx", "cache_position", "logits_to_keep",
}  # fmt: skip
# A mask depends on three facts about a layer: its sliding window, the size of its chunks, and its number of query heads
# for each key/value head.
MaskKey = tuple[int | None, int | None, int]


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
    layers that have called tree attention so far, and their sliding windows. owners: by ids of keys and values, these
    and the first layer that was given them.
    """

    kind: AttentionKind
    incoming: Tensor | None = None
    outgoing: Tensor | None = None
    layers_seen: list[int] = field(default_factory=list)
    windows_seen: set[int | None] = field(default_factory=set)
    owners: dict[tuple[int, int], tuple[ReferenceType[Tensor], ReferenceType[Tensor], int]] = field(
        default_factory=dict
    )

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """[R] of all rows."""

    @abstractmethod
    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention, is_shared: bool = False
    ) -> Tensor:
        """Writes the rows' key and value to the cache and computes one layer's attention over prefix and rows: query
        [1, H*G, R, D], key and value [1, H, R, D] -> [1, R, H*G, D].

        layer: whose keys and values are read. is_shared: whether that is an earlier layer, which has written them.
        """

    def recur(self, layer: RecurrentLayer, inputs: Sequence[Tensor]) -> Tensor:
        """Computes what the rows read of a recurrent layer's states; see RecurrentStep."""
        raise NotImplementedError

    def owner(self, layer: int, key: Tensor, value: Tensor) -> int:
        """The layer whose key and value these are: an earlier one if a model gives several layers the same tensors."""
        which = id(key), id(value)
        if (known := self.owners.get(which)) is not None and known[0]() is key and known[1]() is value:
            return known[2]
        self.owners[which] = ref(key), ref(value), layer
        return layer


@dataclass
class TreeRows:
    """The rows of one sequence in a step, and which keys each of them sees.

    cache: that of the sequence, to which the rows are written behind the prefix. cached: length of the prefix.
    positions: [R] the rows' positions. visibility: [R, R] bool. tree: the rows themselves, and num_certain: how many of
    the first ones are part of the sequence, for recurrent layers alone. masks: those made so far.
    """

    cache: KVCache
    cached: int
    positions: Tensor
    visibility: Tensor
    dtype: torch.dtype
    tree: TokenTree = NO_ROWS
    num_certain: int = 0
    masks: dict[MaskKey, Tensor] = field(default_factory=dict)

    @property
    def states(self) -> RecurrentStates:
        assert self.cache.states is not None, "the caches of a model with recurrent layers have states"
        return self.cache.states

    @cached_property
    def pieces(self) -> list[Piece]:
        """See `split`."""
        return split(self.tree.parents, self.visibility, self.cached, self.num_certain, self.states)

    def mask(self, how: LayerAttention, group: int) -> Tensor:
        """Additive mask [G*R, M], repeated for each of G = `group` query heads: 0 where a row sees a key, else -inf.

        It covers the last M keys: the rows' own, and in a layer with a sliding window or chunks also the keys of the
        prefix that some row may see. Each mask is made when a layer first needs it.
        """
        which = how.sliding_window, how.chunk_size, group
        if which not in self.masks:
            visible = self.visibility
            if not how.sees_all:
                visible = self._near(how)
            mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
            self.masks[which] = mask.masked_fill_(~visible, float("-inf")).repeat(group, 1)
        return self.masks[which]

    def _near(self, how: LayerAttention) -> Tensor:
        """Which of the last M keys each row sees, bool [R, M], in a layer with a sliding window or chunks."""
        num_near = self.cached if how.sliding_window is None else min(self.cached, how.sliding_window - 1)
        if how.chunk_size is not None:
            num_near = min(num_near, self.cached % how.chunk_size)
        keys = torch.cat(
            [torch.arange(self.cached - num_near, self.cached, device=self.positions.device), self.positions]
        )
        visible = torch.cat([self.visibility.new_ones(len(self.visibility), num_near), self.visibility], dim=1)
        if how.sliding_window is not None:
            visible = visible & (self.positions[:, None] - keys[None, :] < how.sliding_window)
        if how.chunk_size is not None:
            visible = visible & (self.positions[:, None] // how.chunk_size == keys[None, :] // how.chunk_size)
        return visible

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kind: AttentionKind,
        how: LayerAttention,
        is_shared: bool,
    ) -> Tensor:
        """See Step; for the rows of this sequence alone."""
        mask = self.mask(how, query.shape[1] // key.shape[1])
        if is_shared:
            keys, values = self.cache.seen_by(key.shape[2], layer)
        else:
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
        return torch.cat([part.positions for part in self.parts])

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention, is_shared: bool = False
    ) -> Tensor:
        sizes = [len(part.positions) for part in self.parts]
        queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
        of_parts = zip(self.parts, queries, keys, values, strict=True)
        return torch.cat([part.attend(layer, q, k, v, self.kind, how, is_shared) for part, q, k, v in of_parts], dim=1)

    def recur(self, layer: RecurrentLayer, inputs: Sequence[Tensor]) -> Tensor:
        sizes = [len(part.positions) for part in self.parts]
        of_parts = zip(self.parts, zip(*(one.split(sizes) for one in inputs), strict=True), strict=True)
        return torch.cat([walk(layer, part.states, part.pieces, own) for part, own in of_parts])


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others,
) -> tuple[Tensor, None]:
    """query [1, H*G, R, D], key and value [1, H, R, D], of the current step's rows alone -> [1, R, H*G, D], None.
    s_aux: [H*G] sinks.

    Raises UnsupportedAttention for an argument that tree attention does not know.
    """
    unknown = [name for name, given in others.items() if name not in UNDERSTOOD and given is not None]
    if unknown:
        raise UnsupportedAttention(
            f"its attention uses {', '.join(sorted(unknown))}, which tree attention does not know"
        )
    layer, step = getattr(module, "layer_idx", -1), current_step()
    assert isinstance(step, Step), "tree attention is computed while a step is running"
    step.layers_seen.append(layer)
    step.windows_seen.add(sliding_window)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    how = LayerAttention(scale, sliding_window, softcap or None, _chunk_size(module, layer), s_aux)
    owner = step.owner(layer, key, value)
    return step.attend(owner, query, key, value, how, is_shared=owner != layer), None


def _chunk_size(module: nn.Module, layer: int) -> int | None:
    """The size of a layer's chunks, which models do not tell their attention function."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    return getattr(config, "attention_chunk_size", None) if kinds and kinds[layer] == CHUNKED else None


def register() -> None:
    """Registers tree attention with transformers under `NAME`. A second call changes nothing."""
    AttentionInterface.register(NAME, tree_attention)
