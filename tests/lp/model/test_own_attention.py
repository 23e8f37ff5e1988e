"""Families that compute attention in their own code answer token trees, with ALiBi and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Auto, Engine, Lookahead, PromptLookup, Sampling, Stopping
from lp.custom_generate import generate
from lp.model.checkpoint import ModelSettings, load
from lp.model.own_attention import bias_table
from tests.models import SLIDING_WINDOW, generate_greedily, load_reference, save_checkpoint
from tests.slow import slow_except

ROTARY = {"rotary_dim": 4}
FALCON = {"model_type": "falcon", "ffn_hidden_size": 64}
# The settings that each tiny model has beyond those of all.
MODELS: dict[str, dict[str, Any]] = {
    "bloom": {"model_type": "bloom"},
    "mpt": {"model_type": "mpt"},
    "falcon": FALCON,
    "falcon, groups": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, ALiBi": {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "falcon, ALiBi and one head of keys": {**FALCON, "alibi": True},
    "gptj": {"model_type": "gptj", **ROTARY},
    "codegen": {"model_type": "codegen", **ROTARY},
    "gpt_neo": {
        "model_type": "gpt_neo",
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "window_size": SLIDING_WINDOW,
    },
}
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(60)]
NUM_TOKENS = 24


def save(name: str, folder: Path, **changes: Any) -> Path:
    own = {**MODELS[name], **changes}
    return save_checkpoint(folder, own.pop("model_type"), **own)


@pytest.mark.parametrize("compile", slow_except(["off", "on"], "off"))
@pytest.mark.parametrize("name", slow_except(MODELS, "bloom", "falcon, groups", "gpt_neo"))
def test_text_is_that_of_generate(name: str, compile: str, tmp_path: Path) -> None:
    folder = save(name, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = generate_greedily(reference, PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(folder), device="cpu", step_times="off", compile=compile)  # type: ignore[arg-type]
    assert not engine.checkpoint.plain
    for method in (Lookahead(3, 4, 3), PromptLookup(), Auto(rows=12)):
        sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(NUM_TOKENS, ignore_eos=True)
        found = engine.generate(PROMPT, decode=method, sampling=sampling, stopping=stopping)
        assert found.token_ids == expected, method


@pytest.mark.parametrize("dtype", slow_except(["bfloat16", "float16"]))
@pytest.mark.parametrize("name", slow_except(MODELS))
def test_trees_are_exact_in_formats_of_16_bits(name: str, dtype: str, tmp_path: Path) -> None:
    checkpoint = load(ModelSettings(str(save(name, tmp_path)), device="cpu", dtype=dtype))
    assert not checkpoint.plain


def test_one_head_of_keys_is_cached_once(tmp_path: Path) -> None:
    model = load(ModelSettings(str(save("falcon", tmp_path)), device="cpu")).model
    assert [shape.heads for shape in model.cache_shapes.values()] == [1, 1]


def test_biases_are_not_rounded_to_16_bits() -> None:
    alibi = -torch.tensor([0.5, 2**-0.5, 0.0039])[:, None] * torch.arange(2048)
    table = bias_table(alibi, torch.empty(0, dtype=torch.bfloat16))
    assert table.dtype == torch.bfloat16
    found = table.double().unflatten(1, (3, -1)).sum(dim=2).T
    torch.testing.assert_close(found, alibi.double(), rtol=2**-20, atol=0.0)


@pytest.mark.parametrize("name", ["bloom", "qwen3_5"])
def test_a_model_that_generate_runs_gets_its_layers_back(name: str, tmp_path: Path) -> None:
    folder = save(name, tmp_path) if name in MODELS else save_checkpoint(tmp_path, name)
    model = load_reference(folder)
    names, expected = list(model.state_dict()), generate_greedily(model, PROMPT, NUM_TOKENS)
    for _ in range(2):
        assert generate_greedily(model, PROMPT, NUM_TOKENS, custom_generate=generate) == expected
        assert list(model.state_dict()) == names
