"""Quantised weights on the emulated GPU: packed where the fused forward reads them, and unpacked elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp import Engine, Lookahead, Sampling
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load, weight_bytes
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.compilation import CompileMode
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.forward import FusedForward
from lp.model.memory import num_weight_bytes
from lp.model.quantization.packed import PackedWeight
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.quantize import Weights
from tests.cuda_on_cpu.models import error_of_graphs, fill_cache
from tests.gguf_files import write_gguf
from tests.models import EOS, generate_greedily
from tests.quantized_checkpoints import KINDS, write_quantized
from tests.slow import slow_except

Folders = dict[str, Path]
WIDE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Checkpoints and the same ones unpacked, made before a test has the emulated GPU, which has no random numbers."""
    folder = tmp_path_factory.mktemp("quantised")
    return {kind: write_quantized(folder / kind, KINDS[kind]) for kind in ("awq", "fp8", "mixed")}


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with several types of blocks, one of which is unpacked."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", kinds=("Q4_K", "Q6_K", "Q8_0", "F16"), **WIDE)


def numbers(weight: Tensor) -> Tensor:
    """float32, on the CPU: the numbers of a parameter."""
    if isinstance(weight, QuantizedParameter):
        return torch.cat([one.cpu() for one in weight.quantized.dequantized()])
    return weight.detach().cpu().float()


def load_as(path: Path, mode: CompileMode, dtype: str = "float32", weights: Weights = Weights.auto) -> CausalModel:
    return load(ModelSettings(str(path), dtype, "cuda:0", weights, compile=mode)).model


@pytest.mark.parametrize("kind", slow_except(["awq", "fp8", "mixed"], "mixed"))
def test_weights_are_unpacked_where_no_fused_forward_runs(
    kind: str, quantized: dict[str, tuple[Path, Path]], cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Triton, and without compiling."""
    folder, plain = quantized[kind]
    for mode in (CompileMode.off, CompileMode.auto):
        with caplog.at_level(logging.INFO, "lookahead"):
            model = load_as(folder, mode)
        assert "quantised weights are unpacked to float32, as no fused forward reads them" in caplog.text
        expected = load_as(plain, CompileMode.off)
        for (name, weight), own in zip(model.model.named_parameters(), expected.model.parameters(), strict=True):
            assert not isinstance(weight, QuantizedParameter), name
            assert torch.equal(numbers(weight), numbers(own)), name
        assert model.weight_bytes == expected.weight_bytes


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_weights_that_are_quantised_on_a_gpu_are_those_of_a_cpu(name: str, folders: Folders, cuda: None) -> None:
    found = load_as(folders[name], CompileMode.off, weights=Weights.int4)
    settings = ModelSettings(str(folders[name]), "float32", "cpu", Weights.int4, compile=CompileMode.off)
    expected = load(settings).model
    for (key, weight), own in zip(found.model.named_parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(numbers(weight), numbers(own).view(own.shape), msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["awq", "fp8", "mixed", "int4", "gguf"])
def test_text_in_float32_is_that_of_generate_on_the_unpacked_weights(
    kind: str, folders: Folders, quantized: dict[str, tuple[Path, Path]], gguf_file: Path, triton: None,
    two_rungs: None, own_cache: Path,
) -> None:  # fmt: skip
    paths = {"int4": folders["llama"], "gguf": gguf_file}
    path = paths[kind] if kind in paths else quantized[kind][0]
    weights = "int4" if kind == "int4" else "auto"
    engine = Engine.from_pretrained(
        str(path), device="cuda", dtype="float32", compile="on", step_times="off", weights=weights
    )
    model = engine.checkpoint.model
    assert isinstance(model.fast, CapturedForward) and isinstance(model.fast._forward, FusedForward)
    packed = [one for one in model.model.parameters() if isinstance(one, QuantizedParameter)]
    assert packed and all(isinstance(one.quantized, PackedWeight) and one.unpacked is None for one in packed)
    prompt = [5, 9, 5, 9, 5]
    settings: Any = {"max_new_tokens": 8, "decode": Lookahead(2, 3, 2), "sampling": Sampling(0.0, seed=1)}
    found = engine.generate(prompt, **settings).token_ids
    assert found == generate_greedily(unpacked_reference(model), prompt, 8, engine.checkpoint.eos or [EOS])


def unpacked_reference(model: CausalModel) -> PreTrainedModel:
    """transformers' model on the CPU with the numbers that a model's weights stand for."""
    reference = type(model.model)(model.model.config).eval()
    with torch.no_grad():
        for (name, weight), own in zip(reference.named_parameters(), model.model.parameters(), strict=True):
            assert weight.shape == own.shape, name
            weight.copy_(numbers(own))
    reference.set_attn_implementation("eager")
    return reference


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "qwen3_moe", "gemma2"])
def test_graphs_of_quantised_models_give_their_own_logits(
    name: str, folders: Folders, triton: None, two_rungs: None
) -> None:
    model = load_as(folders[name], CompileMode.on, weights=Weights.int8)
    cache = model.make_cache(1)
    fill_cache(model, cache, 3)
    assert error_of_graphs(model, cache, 5) < 1e-4


@pytest.mark.parametrize("weights", list(Weights))
def test_the_bytes_that_are_expected_are_those_that_weights_take(
    weights: Weights, quantized: dict[str, tuple[Path, Path]], gguf_file: Path, own_cache: Path,
    monkeypatch: pytest.MonkeyPatch, cuda: None,
) -> None:  # fmt: skip
    monkeypatch.setattr("lp.model.checkpoint._lay_out_weights", lambda *arguments: None)
    folder, plain = quantized["awq"]
    paths = [folder, quantized["fp8"][0], gguf_file] if weights is Weights.auto else [plain]
    for path in paths:
        known = read_checkpoint_info(str(path))
        model = load_as(path, CompileMode.off, "bfloat16", weights).model
        expected, found = weight_bytes(known, torch.bfloat16, weights), num_weight_bytes(model)
        # A GGUF file has a vocabulary and norms in float32 as well, and a tiny one has little else.
        assert expected is not None and 0.95 * found < expected < (1.3 if path == gguf_file else 1.05) * found
        unpacked = weight_bytes(known, torch.bfloat16, weights, is_packed=False)
        assert unpacked == sum(2 * weight.numel() for weight in model.parameters())
