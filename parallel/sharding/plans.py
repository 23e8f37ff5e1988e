"""How models are split: the plans that transformers has, and those of ours for models for which it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.exactness import UnsupportedArchitecture
from lp.model.recurrent.kinds import is_family

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
# By model type. Names of modules, and what each is given.
PIPELINE: dict[str, dict[str, list[str]]] = {
    "gpt2": {
        "transformer.wte": ["input_ids"],
        "transformer.wpe": ["position_ids"],
        "transformer.h": ["hidden_states"],
        "transformer.ln_f": ["hidden_states"],
        "lm_head": ["hidden_states"],
    },
    "gpt_neox": {
        "gpt_neox.embed_in": ["input_ids"],
        "gpt_neox.layers": ["hidden_states"],
        "gpt_neox.final_layer_norm": ["hidden_states"],
        "lm_head": ["hidden_states"],
    },
}


def check_whole(config: PreTrainedConfig) -> None:
    """Raises UnsupportedArchitecture for a model that only ranks that hold all of it can decode."""
    if is_family(config):
        name = (config.architectures or [config.model_type])[0]
        raise UnsupportedArchitecture(
            f"{name} has recurrent layers, which no plan splits among ranks; use parallel=lp, or parallel=single"
        )


def has_tensor_plan(config: PreTrainedConfig) -> bool:
    text: Any = config.get_text_config(decoder=True)
    return text.model_type in TENSOR or bool(getattr(text, "base_model_tp_plan", None))


def has_pipeline_plan(config: PreTrainedConfig) -> bool:
    text: Any = config.get_text_config(decoder=True)
    return text.model_type in PIPELINE or bool(getattr(text, "base_model_pp_plan", None))


def tensor_plan(model: PreTrainedModel) -> Mapping[str, str]:
    """The style of each part of a model, by its name. Those of the whole model win over those of its base."""
    text: Any = model.config.get_text_config(decoder=True)
    if text.model_type in TENSOR:
        return TENSOR[text.model_type]
    base = {f"{model.base_model_prefix}.{name}": style for name, style in text.base_model_tp_plan.items()}
    return {**base, **(type(model)._tp_plan or {})}


def pipeline_plan(model: PreTrainedModel) -> Mapping[str, list[str]]:
    """What each part of a model is given, by its name."""
    text: Any = model.config.get_text_config(decoder=True)
    if text.model_type in PIPELINE:
        return PIPELINE[text.model_type]
    plans: dict[str, Any] = {f"{model.base_model_prefix}.{name}": of for name, of in text.base_model_pp_plan.items()}
    plans |= type(model)._pp_plan or {}
    return {name: given for name, (given, _) in plans.items()}
