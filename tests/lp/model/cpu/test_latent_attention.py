"""What is cached of latent attention: the latent numbers of a token, once for all heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from lp.kv_cache.cache import LayerShape
from lp.model.causal import CausalModel
from lp.model.program.latent import cache_latent_numbers
from lp.model.program.translate import MORE_ROWS, cache_shapes, translate
from lp.model.weightless import weightless_model
from tests.models import CONTEXT, LATENT, SIZES

FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
# Of 4 heads with keys of 8 + 4 numbers and values of 6.
EXPANDED, LATENT_SHAPE = LayerShape(4, 12, 6), LayerShape(1, LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"], 0)


def shapes_of(family: str, **changes: Any) -> dict[int, LayerShape]:
    config = AutoConfig.for_model(**{**SIZES, **LATENT, "model_type": family, **changes})
    program = translate(CausalModel(weightless_model(config, torch.float32), CONTEXT, eos=[]), MORE_ROWS)
    cache_latent_numbers(program)
    return cache_shapes(program)


@pytest.mark.parametrize("family", FAMILIES)
def test_latent_numbers_are_cached_once_for_all_heads(family: str) -> None:
    assert shapes_of(family) == dict.fromkeys(range(2), LATENT_SHAPE)


def test_keys_and_values_are_cached_where_latent_numbers_are_as_many() -> None:
    num_expanded = EXPANDED.numbers - LATENT["qk_rope_head_dim"]
    assert shapes_of("deepseek_v3", kv_lora_rank=num_expanded) == dict.fromkeys(range(2), EXPANDED)
    fewer = shapes_of("deepseek_v3", kv_lora_rank=num_expanded - 1)
    assert fewer == dict.fromkeys(range(2), LayerShape(1, EXPANDED.numbers - 1, 0))
