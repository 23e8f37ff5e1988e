"""A KV cache that holds made-up tokens, for steps on top of a context of a given length."""

from __future__ import annotations

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.tree import chain

PREFILL_CHUNK = 512


def fill_cache(model: CausalModel, num_tokens: int, num_rows: int) -> KVCache:
    """A cache of `num_tokens` made-up tokens, with room for a step's rows behind them.

    The first chunk is computed. The rest repeats its keys and values, or is computed in a model with recurrent layers.
    """
    cache = model.make_cache(num_tokens + num_rows)
    while rows := min(num_tokens - cache.length, PREFILL_CHUNK):
        if cache.length and cache.states is None:
            cache.append(cache.export(0, rows), model.cache_shapes)
            continue
        tokens = range(cache.length, cache.length + rows)
        model.forward(chain([token % model.vocab_size for token in tokens]), cache, num_logits=1)
        cache.keep(range(rows))
    return cache
