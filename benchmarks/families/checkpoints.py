"""Tiny checkpoints with random float32 weights, of every model type of transformers that has a causal language model.

    save_family("gemma3n", folder)

Each is the family's default configuration with its sizes shrunk: whatever else makes the family, such as the order of
its kinds of layers, stays as it is. A few layers are left, among them one of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.shared.tiny_models import VOCAB_SIZE, build_tokenizer, spread_weights

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
CONTEXT, WINDOW = 256, 24
# Layers where all are of one kind, and where there are several.
FEW_LAYERS, SOME_LAYERS = 2, 4
SPECIAL_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
_WIDTH, _INNER, _HEADS, _HEAD_DIM, _EXPERTS = 32, 64, 4, 8, 4

# The sizes of what has these names, unless they are smaller by default.
_SIZES: list[tuple[int, str]] = [
    (
        _WIDTH,
        "hidden_size n_embd d_model emb_dim embedding_dim embedding_size word_embed_proj_dim "
        "input_embedding_size output_embedding_size attention_hidden_size lru_width d_inner ple_embed_dim "
        "pronunciation_embed_dim shape_embed_dim router_hidden_size attention_head_dim",
    ),
    (
        _INNER,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size moe_intermediate_size dff "
        "n_inner dense_intermediate_size intermediate_size_mlp expert_ffn_hidden_size "
        "shared_expert_intermediate_size shared_experts_intermediate_size shared_intermediate_size "
        "moe_shared_expert_intermediate_size feed_forward_size dim_ff prompt_mid_dim moe_latent_size",
    ),
    (
        _HEADS,
        "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
        "linear_num_value_heads linear_num_heads swa_num_attention_heads index_n_heads",
    ),
    (_HEADS // 2, "num_key_value_heads num_kv_heads linear_num_key_heads swa_num_key_value_heads num_query_groups"),
    (
        _HEAD_DIM,
        "head_dim d_head dim_head attention_head_size kv_channels linear_key_head_dim linear_value_head_dim "
        "linear_head_dim swa_head_dim index_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim state_size "
        "ssm_state_size mamba_d_state d_rel mamba_d_head mamba_head_dim",
    ),
    (_EXPERTS, "num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num"),
    (
        FEW_LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
        "num_blocks num_encoder_layers num_kv_shared_layers depth",
    ),
    (
        CONTEXT,
        "max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length "
        "max_target_positions original_max_position_embeddings",
    ),
    (
        WINDOW,
        "sliding_window sliding_window_size attention_window_size window_size local_attention "
        "keep_window_size local_attention_window_len",
    ),
    (VOCAB_SIZE, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    (
        16,
        "q_lora_rank kv_lora_rank o_lora_rank qk_head_dim laurel_rank hc_lowrank attention_chunk_size "
        "chunk_size mamba_chunk_size block_size index_topk rel_extent index_block_size",
    ),
    (
        8,
        "query_pre_attn_scalar dim_model_base hidden_size_per_layer_input adapter_rank mamba_n_heads "
        "mamba_num_heads mamba_headdim",
    ),
    (
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k n_group n_groups num_expert_group o_groups "
        "mamba_n_groups mamba_ngroups",
    ),
    (1, "first_k_dense_replace num_dense_layers moe_layer_start_index topk_group num_mem_blocks"),
    (64, "mamba_d_ssm"),
    (4, "time_step_rank mamba_dt_rank rotary_dim"),
]
SIZES = {name: size for size, names in _SIZES for name in names.split()}
_TO_WIDTH = {"adapter_in_dim": _WIDTH, "adapter_input_size": _WIDTH, "adapter_out_dim": _WIDTH}
# Latent attention has keys and values for each head.
_LATENT = {
    "num_key_value_heads": _HEADS,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
_DOTS3 = {
    "num_key_value_heads": _HEADS,
    "swa_num_attention_heads": _HEADS,
    "swa_num_key_value_heads": _HEADS,
    "swa_head_dim": 2 * _HEAD_DIM,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 24,
    "swa_qk_nope_head_dim": _HEAD_DIM,
    "swa_qk_rope_head_dim": _HEAD_DIM,
    "swa_v_head_dim": _HEAD_DIM,
}
_GEMMA4 = {"global_head_dim": 2 * _HEAD_DIM}
_QWEN4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": _HEAD_DIM,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
# What cannot be derived from a family's defaults by these rules.
EXCEPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "axk1",
            "axk2",
            "bailing_hybrid",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "kimi_linear",
        )
        + ("longcat_flash", "minicpm3", "youtu"),
        _LATENT,
    ),
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": SOME_LAYERS,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": _EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"text_config": _DOTS3, "vision_config": _TO_WIDTH, "audio_config": _TO_WIDTH},
    "dots3_note_text": _DOTS3,
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "gemma4_unified": {"text_config": _GEMMA4},
    "gemma4_unified_assistant": {"text_config": _GEMMA4},
    "gemma4_unified_text": _GEMMA4,
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_hidden_layers": SOME_LAYERS,
    },
    "hunyuan_v1_dense": {"head_dim": _HEAD_DIM},
    "hunyuan_v1_moe": {"head_dim": _HEAD_DIM},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": SOME_LAYERS},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": SOME_LAYERS},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": _HEAD_DIM},
    # Two recurrent layers, for two stages. transformers limits time steps in prompts alone.
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        "num_hidden_layers": 5,
        "time_step_min": 1e-9,
    },
    "nemotron": {"head_dim": _HEAD_DIM, "num_key_value_heads": _HEADS // 2},
    "qwen2_5_vl": {"vision_config": {"out_hidden_size": _WIDTH}, "text_config": _SECTIONS},
    "qwen3_vl": {"vision_config": {"out_hidden_size": _WIDTH, "deepstack_visual_indexes": [0]}},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 2 * _WIDTH, "attention_head_dim": 2 * _WIDTH // _HEADS},
    "zamba2": {"attention_hidden_size": 2 * _WIDTH, "attention_head_dim": 2 * _WIDTH // _HEADS},
}


def save_family(family: str, folder: Path, seed: int = 0) -> Path:
    """Writes the tiny checkpoint of a family and returns its folder. Raises what the family's own code raises.

    family: one of FAMILIES, or a model type that reads images as well.
    """
    config = make_config(family)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = published_kind(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
    spread_weights(model, seed)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    model.save_pretrained(folder)
    build_tokenizer(VOCAB_SIZE).save_pretrained(folder)
    return folder


def published_kind(config: PreTrainedConfig) -> type[AutoModelForCausalLM | AutoModelForImageTextToText]:
    """What makes the model that checkpoints of a configuration hold: the one that reads images as well, if there is one
    and the language model alone has a configuration of another type.
    """
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForCausalLM
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForImageTextToText
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return AutoModelForCausalLM if known.config_class is type(config) else AutoModelForImageTextToText


def make_config(family: str) -> PreTrainedConfig:
    """The configuration of a family's tiny model. Raises what the family's own code raises."""
    config = CONFIG_MAPPING[family]
    given = _shrunk(config(), is_text=True)
    for name, value in EXCEPTIONS.get(family, {}).items():
        given[name] = {**given.get(name, {}), **value} if name.endswith("_config") else value
    return config(**given)


def _shrunk(config: PreTrainedConfig, is_text: bool) -> dict[str, Any]:
    """The settings of a configuration that become others. is_text: whether it is of a language model."""
    found: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if name in config.sub_configs:
            if isinstance(part := getattr(config, name), PreTrainedConfig):
                found[name] = _shrunk(part, is_text and "text" in name)
        elif name in SIZES and type(value) is int:
            found[name] = min(value, SIZES[name])
        elif name.endswith(("_token_id", "_token_index")) and type(value) is int:
            found[name] = min(value, VOCAB_SIZE - 1)
    if "is_decoder" in config.to_dict() and not config.is_encoder_decoder:
        found["is_decoder"] = True
    found |= {name: token for name, token in SPECIAL_TOKENS.items() if is_text or name in found}
    return found | _some_layers(config)


def _some_layers(config: PreTrainedConfig) -> Mapping[str, Any]:
    """The settings that list something of each layer, for one layer of each kind at least."""
    total = getattr(config, "num_hidden_layers", None)
    given = config.to_dict()
    lists = {name: value for name, value in given.items() if isinstance(value, list | tuple) and len(value) == total}
    if not lists:
        return {}
    kinds = [*map(repr, zip(*lists.values(), strict=True))]
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:SOME_LAYERS]
    number = FEW_LAYERS if len(firsts) == 1 else SOME_LAYERS
    places = [firsts[place % len(firsts)] for place in range(number)]
    counted = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    return {counted: number, **{name: [value[place] for place in places] for name, value in lists.items()}}
