"""Mixtures of experts of many families run natively, with the tokens of `generate`, however they choose experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.model.cpu.forward import NativeForward
from lp.request import DecodingMethod
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.slow import slow_except

PROMPT = [5, 9, 77, 5, 9, 41, 120, 5, 9]
NUM_TOKENS = 24
METHODS: list[DecodingMethod] = [Autoregressive(), Lookahead(5, 4, 5), PromptLookup(), Jacobi(6), Auto(rows=40)]
SMALL: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "num_hidden_layers": 3}
GROUPS: dict[str, Any] = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    # Shared experts with a gate.
    "qwen2_moe": {**SMALL, "num_experts": 8, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 48},
    # A choice among groups, two of four here, and of one group alone.
    "glm4_moe": {**SMALL, **GROUPS, "n_group": 4, "topk_group": 2, "head_dim": 8},
    "dots1": {**SMALL, **GROUPS, "n_group": 1, "topk_group": 1, "head_dim": 8},
    # Corrections that choose experts and do not weigh them.
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 8},
    "ernie4_5_moe": {
        **SMALL, "moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1,
    },
    "lfm2_moe": {**SMALL, "num_experts": 8, "num_dense_layers": 1, "layer_types": ["full_attention"] * 3},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32},
}  # fmt: skip


@pytest.mark.parametrize("family", slow_except(FAMILIES, "glm4_moe"))
def test_text_is_that_of_generate(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, seed=3, **FAMILIES[family])
    expected = generate_greedily(load_reference(folder), PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(folder), device="cpu", compile="on", step_times="off")
    assert isinstance(engine.checkpoint.model.fast, NativeForward)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    for how in METHODS:
        found = engine.generate(PROMPT, decode=how, sampling=Sampling(0.0, seed=3), stopping=stopping).token_ids
        assert found == expected, how
    assert len(set(expected)) > NUM_TOKENS / 3


@pytest.mark.parametrize("family", slow_except(["glm4_moe", "ernie4_5_moe", "minimax_m2"]))
def test_routers_in_float32_are_computed_natively_in_16_bits(family: str, tmp_path: Path) -> None:
    """The check at load has compared the logits."""
    folder = save_checkpoint(tmp_path, family, **FAMILIES[family])
    engine = Engine.from_pretrained(str(folder), device="cpu", dtype="bfloat16", compile="on", step_times="off")
    assert isinstance(engine.checkpoint.model.fast, NativeForward)
