"""Of checkpoints that read images as well, the language model alone is loaded, and gives the tokens of `generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from benchmarks.families.checkpoints import save_family
from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.quantization.quantize import Weights
from tests.lp.model.quantization.test_checkpoints import unpacked
from tests.models import generate_greedily
from tests.slow import slow_except

FAMILIES = ["mistral3", "qwen2_5_vl", "qwen3_vl", "gemma3", "qwen3_5", "qwen3_5_moe"]
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(40)]
NUM_TOKENS = 16


@pytest.mark.parametrize("family", slow_except(FAMILIES, "mistral3"))
def test_the_tokens_are_those_of_the_whole_model(family: str, tmp_path: Path) -> None:
    folder = save_family(family, tmp_path)
    whole = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = generate_greedily(whole.eval(), PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(folder), device="cpu", step_times="off")
    own = engine.checkpoint.model.weight_bytes
    assert own < sum(weight.nbytes for weight in whole.parameters()), "the towers are there"
    for method in (Autoregressive(), Lookahead(3, 4, 3), Auto(rows=12)):
        stopping = Stopping(NUM_TOKENS, ignore_eos=True)
        found = engine.generate(PROMPT, decode=method, sampling=Sampling(temperature=0.0, seed=0), stopping=stopping)
        assert found.token_ids == expected, method


@pytest.mark.parametrize(("family", "tower"), [("mistral3", "vision_tower"), ("qwen3_5", "visual")])
def test_weights_of_towers_are_not_needed(family: str, tower: str, tmp_path: Path) -> None:
    folder = save_family(family, tmp_path)
    file = folder / "model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if tower not in name}
    assert len(weights) < len(load_file(file))
    save_file(weights, file, metadata={"format": "pt"})
    for kept in (Weights.auto, Weights.int8):
        model = load(ModelSettings(str(folder), device="cpu", weights=kept)).model
        assert not [name for name, _ in model.model.named_parameters() if tower in name]


@pytest.mark.parametrize("modes", slow_except(["off", "off on"], "off"))
def test_a_model_that_reads_a_row_of_its_embeddings_can_be_quantised(modes: str, tmp_path: Path) -> None:
    """Gemma 4 reads the embedding of the padding token, to put it in the place of images."""
    folder = save_family("gemma4", tmp_path)
    quantized = {"weights": Weights.int8, "step_times": "off", "device": "cpu"}
    engines = [Engine.from_pretrained(str(folder), compile=mode, **quantized) for mode in modes.split()]
    own = dict(engines[0].checkpoint.model.model.named_parameters())
    whole = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if name in own:
                weight.copy_(unpacked(own[name]))
    expected = generate_greedily(whole.eval(), PROMPT, NUM_TOKENS)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    for engine in engines:
        found = engine.generate(
            PROMPT, decode=Lookahead(3, 4, 3), sampling=Sampling(temperature=0.0, seed=0), stopping=stopping
        )
        assert found.token_ids == expected


def test_a_missing_weight_of_the_language_model_is_named(tmp_path: Path) -> None:
    folder = save_family("mistral3", tmp_path)
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "layers.1.mlp.up_proj" in name)
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj"):
        load(ModelSettings(str(folder), device="cpu"))
    assert json.loads((folder / "config.json").read_text())["model_type"] == "mistral3"
