"""A Hugging Face causal language model that answers token trees, on one device.

Knows nothing of where a tree's rows come from, or of which tokens are chosen from the logits.

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
    """A faster version of a model's forward.

    mask_keys: the masks that it must be given. num_spare: how many released caches to keep for later sequences; more
    than 0 if the fast forward is bound to the memory of the caches that it has seen.
    """

    mask_keys: list[MaskKey]
    num_spare: int

    def room(self, num_rows: int) -> int:
        """The number of rows, padding included, that a step of `num_rows` rows writes to a cache."""
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
        """tokens, positions: [R]. length: the prefix's length. masks: as TreeStep.mask makes them. keys, values: one
        tensor [1, H, capacity, D] for each layer, into which the rows are written behind the prefix.

        Returns float32 logits [num_logits, V] of the last rows.
        """
        ...


class CausalModel:
    """Wraps a transformers model, which is unchanged but for its attention function: that becomes tree attention."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_length: int,
        eos: list[int],
        kind: AttentionKind = AttentionKind.auto,
        layers: list[int] | None = None,
    ):
        """max_length: the most tokens that a sequence may have. eos: end-of-sequence tokens. layers: indices of the
        layers that this rank holds; None means all of them.

        Raises UnsupportedAttention for a kind of attention that cannot be used here.
        """
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model = model.eval()
        self.max_length = max_length
        self.eos = eos
        # Replaces the model's own forward for every cache that has been written to.
        self.fast: FastForward | None = None
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
        """Returns an empty cache, new or spare. It grows when more tokens come than it has room for."""
        if self._spare:
            return self._spare.pop()
        return KVCache(self.num_layers, min(capacity, self.max_length))

    def release(self, cache: KVCache) -> None:
        """Takes back a cache that is no longer needed, and keeps it if the fast forward asks for spare ones."""
        if self.fast and len(self._spare) < self.fast.num_spare:
            cache.length = 0
            self._spare.append(cache)

    def forward(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        """Runs all rows of a tree after the cached prefix; returns float32 logits [num_logits, V] of the last rows.

        The rows' keys and values lie in the cache behind the prefix; `KVCache.keep` then says which of them stay.
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
        """Runs the model's own `forward`; returns the logits and the step, which lists the layers that have used it.

        incoming: hidden states [1, R, hidden] for the first layer, if another pipeline stage has the embedding.
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
        """Moves tokens, positions and visibility to the device in one transfer; returns the step and the tokens."""
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
