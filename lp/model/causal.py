"""A Hugging Face causal language model that answers token trees, on one device.

Knows nothing of where a tree's rows come from, or of which tokens are chosen from the logits.

R rows of the tree, V vocabulary
"""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.hardware import upload
from lp.model import attention
from lp.model.attention import TreeStep
from lp.model.gpu.device import current
from lp.model.kernels import AttentionKind, resolve_kind
from lp.model.kv_cache import KVCache
from lp.model.memory import num_weight_bytes
from lp.tree import TokenTree

log = logging.getLogger("lookahead")


class ForwardFailed(RuntimeError):
    """A fast forward cannot run, though the model's own can. The message says why, on one line."""


class FastForward(Protocol):
    """A faster version of a model's forward.

    num_spare: how many released caches to keep for later sequences; more than 0 if the fast forward is bound to the
    memory of the caches that it has seen. begins_caches: whether it can be given a cache that nothing was written to.
    owns_weights: whether it has copies of all weights that it needs. is_invariant: whether a row's logits are the same
    to the last bit whatever rows are beside it and however much of its path is cached.
    """

    num_spare: int
    begins_caches: bool
    owns_weights: bool
    is_invariant: bool

    def room(self, num_rows: int) -> int:
        """The number of rows, padding included, that a step of `num_rows` rows writes to a cache."""
        ...

    def __call__(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        """Runs all rows of a tree after the cached prefix, and writes them to the cache, which has room for them.

        Returns float32 logits [num_logits, V] of the last rows. Raises ForwardFailed before it writes to the prefix.
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
        # Replaces the model's own forward, for caches that have been written to if it cannot begin them.
        self.fast: FastForward | None = None
        self.weight_bytes = num_weight_bytes(model)
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

    def free_weights(self) -> None:
        """Frees the weights if the fast forward has copies of its own. The model's own forward cannot run any more."""
        if self.fast and self.fast.owns_weights:
            for weight in self.model.parameters():
                weight.data = weight.new_empty(0)

    def forward(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        """Runs all rows of a tree after the cached prefix; returns float32 logits [num_logits, V] of the last rows.

        The rows' keys and values lie in the cache behind the prefix; `KVCache.keep` then says which of them stay.
        """
        if self.fast and (cache.is_written or self.fast.begins_caches):
            cache.reserve(self.fast.room(len(tree)))
            try:
                with current(self.device):
                    return self.fast(tree, cache, num_logits)
            except ForwardFailed as error:
                log.warning("from here on the model's own forward runs, which is slower: %s", error)
                self.fast = None
                self._spare.clear()
        return self.forward_eager(tree, cache, num_logits)[0]

    @torch.inference_mode()
    def forward_eager(
        self, tree: TokenTree, cache: KVCache, num_logits: int, incoming: Tensor | None = None
    ) -> tuple[Tensor, TreeStep]:
        """Runs the model's own `forward`; returns the logits and the step, which lists the layers that have used it.

        incoming: hidden states [1, R, hidden] for the first layer, if another pipeline stage has the embedding.
        """
        cache.reserve(len(tree))
        step, tokens = self.to_device(tree, cache.length)
        step.incoming = incoming
        with current(self.device):
            output = self.model(
                input_ids=tokens[None],
                position_ids=step.positions[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=num_logits,
                step=step,
            )
        return output.logits[0].float(), step

    def to_device(self, tree: TokenTree, cached: int) -> tuple[TreeStep, Tensor]:
        """Moves tokens, positions and visibility to the device in one transfer; returns the step and the tokens."""
        packed = np.concatenate([tree.tokens[:, None], tree.depths[:, None] + cached, tree.visibility], axis=1)
        on_device = upload(packed, self.device)
        tokens, positions = on_device[:, 0].contiguous(), on_device[:, 1].contiguous()
        step = TreeStep(
            self.attention_kind,
            cached=cached,
            positions=positions,
            visibility=on_device[:, 2:].bool(),
            dtype=self.dtype,
        )
        return step, tokens
