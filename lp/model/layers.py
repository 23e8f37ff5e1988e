"""What a configuration says of single layers, where these differ."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


def layer_config(config: PreTrainedConfig, layer: int) -> Any:
    """The text configuration as it is for one layer."""
    text: Any = config.get_text_config(decoder=True)
    return text.per_layer_config[layer] if getattr(text, "is_heterogeneous", False) else text


def head_counts(config: PreTrainedConfig, layer: int) -> tuple[int, int]:
    """The numbers of a layer's query heads and key/value heads."""
    own = layer_config(config, layer)
    if getattr(own, "multi_query", False) and not getattr(own, "new_decoder_architecture", False):
        return own.num_attention_heads, 1
    names = ("num_key_value_heads", "num_kv_heads", "num_attention_heads")
    return own.num_attention_heads, next(filter(None, (getattr(own, name, None) for name in names)))


def head_dims(config: PreTrainedConfig, layer: int) -> tuple[int, int]:
    """The dimensions of a layer's keys and values."""
    own = layer_config(config, layer)
    if getattr(own, "kv_lora_rank", None):  # multi-head latent attention
        return own.qk_nope_head_dim + own.qk_rope_head_dim, own.v_head_dim
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return head_dim, head_dim


def cached_layers(config: PreTrainedConfig) -> range:
    """The layers that have keys and values of their own: the last ones may read those of others."""
    text: Any = config.get_text_config(decoder=True)
    return range(text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", None) or 0))
