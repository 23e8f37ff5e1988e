"""A Hugging Face causal language model that answers token trees, on one device.

R rows of the tree, V vocabulary
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.model import attention
from lp.model.attention import MaskKey, TreeStep
from lp.model.kernels import AttentionKind, resolve_kind
from lp.model.kv_cache import KVCache
from lp.tree import TokenTree


class FastForward(Protocol):
    """A model's forward made fast for what its steps are like.

    mask_keys: the masks that it is to be given. num_spare: caches to keep for later sequences, if it is bound to their
    place in memory.
    """

    mask_keys: list[MaskKey]
    num_spare: int

    def room(self, num_rows: int) -> int:
        """Rows that a step of so many writes to a cache, padding included."""
        ...

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        num_logits: int,
        length: int,
        masks: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """tokens, positions: [R]. length: of the prefix. masks: as TreeStep.mask makes them. keys, values: of each
        layer, [1, H, capacity, D], where rows are written behind the prefix. Returns float32 logits [num_logits, V]
        of the last rows.
        """
        ...


class CausalModel:
    """Wraps an untouched transformers model whose attention is set to the token tree's."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_length: int,
        eos: list[int],
        kind: AttentionKind = AttentionKind.auto,
        layers: list[int] | None = None,
    ):
        """max_length: positions that the model knows. eos: its end-of-sequence tokens. layers: indices of those that
        are really there; None is all of them.
        """
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model = model.eval()
        self.max_length = max_length
        self.eos = eos
        self.fast: FastForward | None = None
        """Takes the place of the model's own forward once a cache has been written to."""
        self._spare: list[KVCache] = []
        self.device = model.device
        self.dtype = model.dtype
        text_config = model.config.get_text_config(decoder=True)
        self.num_layers: int = text_config.num_hidden_layers
        self.layers = list(range(self.num_layers)) if layers is None else layers
        self.vocab_size: int = text_config.vocab_size
        head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
        self.attention_kind = resolve_kind(kind, self.device, self.dtype, head_dim)

    def make_cache(self, capacity: int) -> KVCache:
        """An empty cache with room for so many tokens, which grows if it must."""
        if self._spare:
            return self._spare.pop()
        return KVCache(self.num_layers, min(capacity, self.max_length))

    def release(self, cache: KVCache) -> None:
        """Takes back a cache that nobody needs any more."""
        if self.fast and len(self._spare) < self.fast.num_spare:
            cache.length = 0
            self._spare.append(cache)

    def forward(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        """Computes all rows on top of the cache; float32 logits [num_logits, V] of the last ones.

        The rows' keys and values stay behind the cached prefix until the cache is told which to keep.
        """
        if self.fast and cache.is_written:
            return self._forward_fast(self.fast, tree, cache, num_logits)
        return self.forward_eager(tree, cache, num_logits)[0]

    @torch.inference_mode()
    def _forward_fast(self, fast: FastForward, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        cache.reserve(fast.room(len(tree)))
        step, tokens = self._to_device(tree, cache.length)
        masks = [step.mask(*key) for key in fast.mask_keys]
        stores = list(cache.keys.values()), list(cache.values.values())
        return fast(tokens, step.positions, num_logits, cache.length, masks, *stores)

    @torch.inference_mode()
    def forward_eager(
        self, tree: TokenTree, cache: KVCache, num_logits: int, incoming: Tensor | None = None
    ) -> tuple[Tensor, TreeStep]:
        """The model's own `forward`, and the step that says which layers have read the tree's visibility.

        incoming: hidden states [1, R, hidden] for the first layer, if the embedding is in another stage.
        """
        cache.reserve(len(tree))
        step, tokens = self._to_device(tree, cache.length)
        step.incoming = incoming
        output = self.model(
            input_ids=tokens[None],
            position_ids=step.positions[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=num_logits,
            step=step,
        )
        return output.logits[0].float(), step

    def _to_device(self, tree: TokenTree, cached: int) -> tuple[TreeStep, Tensor]:
        """The step's tokens, positions and visibility in one transfer."""
        packed = np.concatenate([tree.tokens[:, None], tree.depths[:, None] + cached, tree.visibility], axis=1)
        on_device = torch.from_numpy(packed).to(self.device)
        tokens, positions = on_device[:, 0].contiguous(), on_device[:, 1].contiguous()
        step = TreeStep(
            self.attention_kind,
            cached=cached,
            positions=positions,
            visibility=on_device[:, 2:].bool(),
            dtype=self.dtype,
        )
        return step, tokens
