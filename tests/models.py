"""Tiny models with random weights, saved as real checkpoint folders: safetensors, config.json, tokenizer.json.

Their weights are spread widely: greedy text is varied, and the best token is clearly ahead of the second, so that tests
can compare tokens in spite of rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.shared.tiny_models import VOCAB_SIZE, build_tokenizer, spread_weights

CONTEXT = 640
BOS, EOS = 0, 1
SLIDING_WINDOW = 24

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "tie_word_embeddings": False,
}
HEAD_DIM: dict[str, Any] = {"head_dim": 8}
ALTERNATING: dict[str, Any] = {
    **HEAD_DIM,
    "num_hidden_layers": 4,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}

# The settings that each tiny model has beyond `SIZES`.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_hidden_layers": 3},
    "mistral": {"model_type": "mistral", "sliding_window": SLIDING_WINDOW},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", **HEAD_DIM},
    "gemma2": {
        "model_type": "gemma2",
        **ALTERNATING,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 20.0,
    },
    "gemma3": {"model_type": "gemma3_text", **ALTERNATING, "query_pre_attn_scalar": 8},
    "phi3": {"model_type": "phi3"},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "gpt_neox": {"model_type": "gpt_neox"},
    "olmo2": {"model_type": "olmo2"},
    "mixtral": {"model_type": "mixtral", **EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        **HEAD_DIM,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **ALTERNATING,
        **EXPERTS,
        "num_local_experts": 4,
        "intermediate_size": 32,
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": SLIDING_WINDOW},
    "granite": {"model_type": "granite"},
    "cohere": {"model_type": "cohere", "logit_scale": 1.0},
}

DELTA_NET: dict[str, Any] = {
    **HEAD_DIM,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
# Models some of whose layers are recurrent.
HYBRIDS: dict[str, dict[str, Any]] = {
    "lfm2": {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {
        "model_type": "lfm2_moe",
        **EXPERTS,
        "layer_types": ["conv", "full_attention"],
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **DELTA_NET,
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_5": {"model_type": "qwen3_5_text", **DELTA_NET},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe_text",
        **DELTA_NET,
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "olmo_hybrid": {"model_type": "olmo_hybrid", **DELTA_NET},
    "bamba": {"model_type": "bamba", **MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        "model_type": "granitemoehybrid",
        **MAMBA,
        **EXPERTS,
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        **HEAD_DIM,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "falcon_h1": {"model_type": "falcon_h1", **MAMBA, "mamba_d_ssm": 64, **HEAD_DIM},
    "minimax": {
        "model_type": "minimax",
        **HEAD_DIM,
        **EXPERTS,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "block_size": 16,
        "linear_attn_alpha_factor": 1.5,
        "linear_attn_beta_factor": 0.7,
    },
    "jamba": {
        "model_type": "jamba",
        **EXPERTS,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    # Without attention.
    "mamba2": {
        "model_type": "mamba2",
        "num_attention_heads": None,
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 2,
        "expand": 2,
        "chunk_size": 16,
    },
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
SHARED: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": SLIDING_WINDOW,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "num_kv_shared_layers": 2,
}
# Models whose layers have keys and values of several sizes, share them, or see chunks. Those with a program come first.
ATTENTION_KINDS: dict[str, dict[str, Any]] = {
    "gemma4": {
        "model_type": "gemma4_text",
        **SHARED,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "global_head_dim": 16,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 20.0,
    },
    "gemma4_moe": {
        "model_type": "gemma4_text",
        **ALTERNATING,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT, "n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    "deepseek_v2": {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "n_routed_experts": 4},
    "gemma3n": {
        "model_type": "gemma3n_text",
        **SHARED,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "altup_num_inputs": 3,
        "laurel_rank": 8,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "llama4": {
        "model_type": "llama4_text",
        **HEAD_DIM,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "attention_chunk_size": SLIDING_WINDOW,
        "floor_scale": 16,
        "attn_scale": 0.3,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 2,
    },
}
WITH_PROGRAM = ("gemma4", "gemma4_moe", "deepseek_v3", "deepseek_v2")


def save_checkpoint(
    folder: Path, architecture: str = "llama", seed: int = 0, chat_template: str | None = None, **changes: Any
) -> Path:
    """Writes a tiny model and returns its folder; `changes` go into the model's configuration."""
    own = (ARCHITECTURES | HYBRIDS | ATTENTION_KINDS).get(architecture, {"model_type": architecture})
    values = {**SIZES, **own, **changes}
    config = AutoConfig.for_model(**values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    spread_weights(model, seed)
    model.save_pretrained(folder)
    build_tokenizer(min(VOCAB_SIZE, values["vocab_size"]), chat_template).save_pretrained(folder)
    return folder


def load_reference(folder: Path) -> PreTrainedModel:
    """The model as transformers runs it, with transformers' eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def generate_greedily(
    model: PreTrainedModel, prompt: list[int], num_tokens: int, eos: list[int] | None = None, **settings: Any
) -> list[int]:
    """The new tokens that transformers' `generate` gives; without `eos` it never stops early."""
    model.generation_config.eos_token_id = eos
    inputs = torch.tensor([prompt])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, do_sample=False, **settings
    )
    return output[0, len(prompt) :].tolist()
