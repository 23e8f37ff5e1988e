"""How models are split: the plans that transformers has, and those of ours for models for which it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from parallel.sharding.weights import name_of

# By model type. Names of modules, in which * is the index of a layer, and how each is split (see slices.py).
TENSOR: dict[str, dict[str, str]] = {
    "gpt2": {
        "transformer.h.*.attn.c_attn": "packed_colwise",
        "transformer.h.*.attn.c_proj": "rowwise",
        "transformer.h.*.mlp.c_fc": "colwise",
        "transformer.h.*.mlp.c_proj": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "gpt_oss": {
        "model.layers.*.self_attn.q_proj": "colwise",
        "model.layers.*.self_attn.k_proj": "colwise",
        "model.layers.*.self_attn.v_proj": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.experts": "moe_tp_experts",
        "lm_head": "colwise_gather_output",
    },
}


def _decoder(embeddings: str, layers: str, norm: str) -> dict[str, list[str]]:
    """The plan of a model that is embeddings, layers, a norm and a head. embeddings: of tokens."""
    return {embeddings: ["input_ids"], **{name: ["hidden_states"] for name in (layers, norm, "lm_head")}}


_GPT = _decoder("transformer.wte", "transformer.h", "transformer.ln_f")
_LLAMA = _decoder("model.embed_tokens", "model.layers", "model.norm")
_LLAMA_LIKE = (
    "bitnet granitemoe granitemoe_swa granitemoehybrid granitemoeshared hunyuan_v1_dense hunyuan_v1_moe jetmoe "
    "llama4_text nemotron olmoe phimoe stablelm"
)
# By model type. Names of modules, and what each is given.
PIPELINE: dict[str, dict[str, list[str]]] = {
    **{name: _LLAMA for name in _LLAMA_LIKE.split()},
    **{name: _GPT for name in ("codegen", "gptj")},
    **{name: {"transformer.wpe": ["position_ids"], **_GPT} for name in ("gpt2", "gpt_bigcode", "gpt_neo")},
    "bamba": _decoder("model.embed_tokens", "model.layers", "model.final_layernorm"),
    "dbrx": _decoder("transformer.wte", "transformer.blocks", "transformer.norm_f"),
    "falcon": _decoder("transformer.word_embeddings", "transformer.h", "transformer.ln_f"),
    "falcon_h1": _decoder("model.embed_tokens", "model.layers", "model.final_layernorm"),
    "gpt_neox": _decoder("gpt_neox.embed_in", "gpt_neox.layers", "gpt_neox.final_layer_norm"),
    "jamba": _decoder("model.embed_tokens", "model.layers", "model.final_layernorm"),
    "lfm2": _decoder("model.embed_tokens", "model.layers", "model.embedding_norm"),
    "lfm2_moe": _decoder("model.embed_tokens", "model.layers", "model.embedding_norm"),
    "mpt": _decoder("transformer.wte", "transformer.blocks", "transformer.norm_f"),
    "nemotron_h": _decoder("model.embeddings", "model.layers", "model.norm_f"),
    "persimmon": _decoder("model.embed_tokens", "model.layers", "model.final_layernorm"),
}
# Those whose layers return something behind the hidden states.
RETURN_MORE = {"bamba", "codegen", "falcon", "falcon_h1", "gpt_neo", "gptj", "mpt"}


def has_tensor_plan(config: PreTrainedConfig) -> bool:
    text: Any = config.get_text_config(decoder=True)
    return text.model_type in TENSOR or bool(getattr(text, "base_model_tp_plan", None))


def has_pipeline_plan(config: PreTrainedConfig) -> bool:
    text: Any = config.get_text_config(decoder=True)
    return text.model_type in PIPELINE or bool(getattr(text, "base_model_pp_plan", None))


def base_name(model: PreTrainedModel) -> str:
    """The name of the part that has the embedding and the layers, which transformers' plans are about."""
    return name_of(model, model.get_input_embeddings()).rpartition(".")[0]


def tensor_plan(model: PreTrainedModel) -> Mapping[str, str]:
    """The style of each part of a model, by its name. Those of the whole model win over those of its base."""
    text: Any = model.config.get_text_config(decoder=True)
    if text.model_type in TENSOR:
        return TENSOR[text.model_type]
    base = {f"{base_name(model)}.{name}": style for name, style in text.base_model_tp_plan.items()}
    return {**base, **(type(model)._tp_plan or {})}


def pipeline_plan(model: PreTrainedModel) -> Mapping[str, list[str]]:
    """What each part of a model is given, by its name."""
    text: Any = model.config.get_text_config(decoder=True)
    if text.model_type in PIPELINE:
        return PIPELINE[text.model_type]
    base, head = base_name(model), model.get_output_embeddings()
    assert head is not None, "a causal language model has a head"
    own = {f"{base}.{name}": given for name, (given, _) in text.base_model_pp_plan.items()}
    return own | {name_of(model, head): ["hidden_states"]}
