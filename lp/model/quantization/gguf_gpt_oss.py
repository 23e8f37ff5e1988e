"""GGUF files of gpt-oss, whose configuration and names transformers does not read as llama.cpp writes them.

The names of most tensors are those that the package gguf knows. The file has gates and ups of experts apart, where
transformers has one weight and one bias, in which their outputs take turns.
"""

from __future__ import annotations

import re

from transformers import GptOssConfig

from lp.model.gguf_header import GgufHeader
from lp.model.weight_files import FileKey, Matrices

ARCHITECTURE = "gpt-oss"
EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")


def read_config(header: GgufHeader) -> GptOssConfig:
    """The configuration that a file describes. Raises KeyError for a value that is missing."""
    values = header.values
    of = {key.removeprefix(f"{ARCHITECTURE}."): value for key, value in values.items()}
    rope = {"rope_type": "default", "rope_theta": of["rope.freq_base"]}
    if of.get("rope.scaling.type") == "yarn":
        rope |= {
            "rope_type": "yarn",
            "factor": of["rope.scaling.factor"],
            "original_max_position_embeddings": of["rope.scaling.original_context_length"],
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        }
    return GptOssConfig(
        architectures=["GptOssForCausalLM"],
        num_hidden_layers=of["block_count"],
        num_local_experts=of["expert_count"],
        num_experts_per_tok=of["expert_used_count"],
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=of["embedding_length"],
        intermediate_size=of["expert_feed_forward_length"],
        head_dim=of["attention.key_length"],
        num_attention_heads=of["attention.head_count"],
        num_key_value_heads=of["attention.head_count_kv"],
        sliding_window=of["attention.sliding_window"],
        max_position_embeddings=of["context_length"],
        rms_norm_eps=of["attention.layer_norm_rms_epsilon"],
        rope_parameters=rope,
        tie_word_embeddings="output.weight" not in header.tensors,
        bos_token_id=values.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=values.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=values.get("tokenizer.ggml.padding_token_id"),
    )


def expert_key(own: str) -> FileKey | None:
    """What a parameter of experts is in the file; None for another parameter."""
    if (found := EXPERTS.fullmatch(own)) is None:
        return None
    layer, part, is_bias = found.groups()
    kind = "bias" if is_bias else "weight"
    parts = [f"blk.{layer}.ffn_{name}_exps.{kind}" for name in part.split("_")]
    if part == "down" and is_bias:
        return parts[0]
    return Matrices(tuple((one,) for one in parts), takes_turns=len(parts) > 1)
