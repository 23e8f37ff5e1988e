"""The language model of a checkpoint that may read images or sound as well.

The towers that read these are left out of the model, and their weights are not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)


def has_towers(config: PreTrainedConfig) -> bool:
    """Whether transformers makes a model with more than a language model of this configuration."""
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in mapping:
            known: Any = mapping[type(config)]
            return known.config_class is type(config) and config.get_text_config(decoder=True) is not config
    return False


def calls_interface(config: PreTrainedConfig) -> bool:
    """Whether transformers says of a model that all of its attention goes through `AttentionInterface`."""
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in mapping:
            known: Any = mapping[type(config)]
            return known._supports_attention_backend
    return False


def make_language_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a configuration, without towers and what joins them to it, with random weights."""
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    kind = AutoModelForCausalLM if is_known else AutoModelForImageTextToText
    model = kind.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    parts = dict(model.base_model.named_children())
    if has_towers(config) and "language_model" in parts:
        for name in parts.keys() - {"language_model"}:
            setattr(model.base_model, name, nn.Identity())
    return model
