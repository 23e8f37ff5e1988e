"""Shapes of tiny models with which the native kernels have more or other work than with the usual ones."""

from __future__ import annotations

from typing import Any

# Models of other shapes: the architecture, and what differs from the tiny one.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    # No vector or tile divides these sizes.
    "odd": (
        "qwen3",
        {
            "hidden_size": 36,
            "head_dim": 12,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 50,
        },
    ),
    # Heads that a matrix unit computes: with windows and soft-capping, with many queries for a key, and large ones.
    "windows": ("gemma2", {"head_dim": 64, "num_attention_heads": 8}),
    "groups": ("qwen3", {"hidden_size": 40, "head_dim": 96, "num_attention_heads": 20, "num_key_value_heads": 1}),
    "large": ("llama", {"head_dim": 256}),
    # Values that are the first numbers of keys, and more queries for a key than one task has.
    # Without experts: which ones a row gets depends on rounding in bfloat16.
    "latent": (
        "deepseek_v3",
        {
            "num_attention_heads": 50,
            "num_key_value_heads": 50,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 48,
            "qk_rope_head_dim": 32,
            "v_head_dim": 40,
            "first_k_dense_replace": 99,
        },
    ),
    # Values that are smaller than keys: fewer numbers than the latent ones of which both are made.
    "few": (
        "deepseek_v3",
        {
            "kv_lora_rank": 448,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 16,
            "first_k_dense_replace": 99,
        },
    ),
    # Queries that grow with their positions.
    "scaled": (
        "ministral3",
        {
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    # An activation of other functions.
    "xielu": ("apertus", {}),
}
# The same of models with recurrent layers.
RECURRENT_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    # Heads that no vector divides, with values that are wider than the columns which a thread advances at a time.
    "odd_delta_net": (
        "qwen3_5",
        {
            "linear_key_head_dim": 7,
            "linear_value_head_dim": 37,
            "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 3,
        },
    ),
    # The same of a selective scan, with one expert.
    "odd_scan": (
        "jamba",
        {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "mamba_d_state": 7, "num_experts": 1},
    ),
    # The same of lightning attention, with one expert, as rounding would decide among several in bfloat16.
    "odd_lightning": ("minimax", {"head_dim": 38, "num_local_experts": 1, "num_experts_per_tok": 1}),
}
