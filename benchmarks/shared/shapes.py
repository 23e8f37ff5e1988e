"""Shapes of models without their weights: well-known ones by name, or those of a Hugging Face configuration."""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

# Llamas as large as GPT-2's smallest, TinyLlama, Llama 2 and Llama 3.1, other families, and a small mixture of experts.
# What a shape does not name is as in Llama 2.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-130m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
                   "num_key_value_heads": 12},
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
                 "num_key_value_heads": 4},
    "llama-7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                 "num_key_value_heads": 32},
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
    "qwen2.5-7b": {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                   "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064},
    "gemma-2-9b": {"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
                   "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256_000},
    "qwen3-moe-115m": {"model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024,
                       "moe_intermediate_size": 192, "num_experts": 32, "num_experts_per_tok": 4,
                       "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
}  # fmt: skip
VOCABULARY = 32_000
CONTEXT = 4096


def read_config(model: str) -> PreTrainedConfig:
    """The configuration of a named shape, a config.json, a checkpoint's folder or a hub id.

    Ends the program with a message if there is none that can be used.
    """
    if model in SHAPES:
        return make_config(SHAPES[model])
    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SystemExit(f"the configuration of {model!r} cannot be used: {reason}") from None


def make_config(sizes: dict[str, Any]) -> PreTrainedConfig:
    """A configuration. sizes: see SHAPES."""
    shape = {"model_type": "llama", "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, **sizes}
    config = AutoConfig.for_model(**shape)
    with torch.device("meta"):
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    return config


def model_of_shape(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose weights have shapes but no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def num_parameters(config: PreTrainedConfig) -> int:
    """The number of parameters; a head that is tied to the embedding is not counted again. Raises ValueError."""
    model = model_of_shape(config, torch.bfloat16)
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
