"""Shapes of models without their weights: well-known ones by name, or those of a Hugging Face configuration."""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

from parallel.sharding.weights import empty_model

# Llamas as large as GPT-2's smallest, TinyLlama, Llama 2 and Llama 3.1.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-130m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
                   "num_key_value_heads": 12},
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
                 "num_key_value_heads": 4},
    "llama-7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                 "num_key_value_heads": 32},
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
}  # fmt: skip
VOCABULARY = 32_000
CONTEXT = 4096


def read_config(model: str) -> PreTrainedConfig:
    """The configuration of a named shape, a config.json, a checkpoint's folder or a hub id.

    Ends the program with a message if there is none that can be used.
    """
    if model in SHAPES:
        return make_llama(SHAPES[model])
    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SystemExit(f"the configuration of {model!r} cannot be used: {reason}") from None


def make_llama(sizes: dict[str, Any]) -> LlamaConfig:
    """A Llama's configuration; whatever `sizes` does not name is as in Llama 2."""
    return LlamaConfig(
        **{"architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, **sizes}
    )


def num_parameters(config: PreTrainedConfig) -> int:
    """The number of parameters; a head that is tied to the embedding is not counted again. Raises ValueError."""
    model = empty_model(config, torch.bfloat16)
    model.tie_weights()
    return sum(weight.numel() for weight in model.parameters())


def describe_shape(config: PreTrainedConfig) -> str:
    """Describes a model's size on one line."""
    text: Any = config.get_text_config(decoder=True)
    num_groups = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    shared = f" in {num_groups} groups" if num_groups != text.num_attention_heads else ""
    return (
        f"{num_parameters(config) / 1e6:,.0f}M parameters: {text.num_hidden_layers} layers, {text.hidden_size} wide, "
        f"{text.num_attention_heads} heads{shared}, vocabulary of {text.vocab_size:,}"
    )
