"""Weights that are quantised when they are read: how well, what of a model is, and whose text comes out."""

from __future__ import annotations

import logging
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP

from lp import Engine, Lookahead
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu import build
from lp.model.cpu.make import make_native
from lp.model.errors import CheckpointError
from lp.model.probes import text_probes
from lp.model.quantization import quantize as quantizing
from lp.model.quantization.parameter import QuantizedParameter, quantized_parameters
from lp.model.quantization.quantize import Weights, quantize
from lp.platform.build import CannotBuild, Source, find_compiler
from tests.gguf_files import write_gguf
from tests.lp.model.quantization.test_checkpoints import METHODS, NUM_TOKENS, PROMPT, tokens, unpacked
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.quantized_checkpoints import KINDS, write_quantized
from tests.slow import slow_except


def numbers(weight: Tensor, bits: int) -> Tensor:
    return torch.cat([*quantize(weight, bits, torch.float32).dequantized()])


def with_quantized_weights(reference: PreTrainedModel, engine: Engine) -> PreTrainedModel:
    """transformers' model with the numbers that an engine's weights stand for."""
    own = {
        # A layer that took another's place holds that layer.
        name.replace(".mixer.", ".").replace(".self_attention.attention.", ".self_attention."): weight
        for name, weight in engine.checkpoint.model.model.named_parameters()
    }
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            weight.copy_(unpacked(own[name]))
    return reference


@pytest.mark.parametrize(("bits", "bound"), [(4, 0.0835), (8, 0.0051)])
def test_errors_are_less_than_those_of_the_largest_number_as_scale(bits: int, bound: float) -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    groups, largest = weight.view(-1, 32), (1 << (bits - 1)) - 1
    scales = groups.abs().amax(dim=1, keepdim=True) / largest
    simple = ((groups / scales).round() * scales).view(weight.shape)
    error = (numbers(weight, bits) - weight).norm() / weight.norm()
    assert error < bound and error < 0.985 * (simple - weight).norm() / weight.norm()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_that_have_codes_stay_as_they_are(bits: int, dtype: torch.dtype) -> None:
    """Of every group the largest number has the one code without an opposite, once as it is and once negated."""
    low = -(1 << (bits - 1))
    codes = torch.randint(low, -low, (6, 64), generator=torch.Generator().manual_seed(1))
    codes[:, ::32] = low
    weight = (codes * torch.tensor([[0.25], [-0.25], [2.0], [-8.0], [0.0], [2**-9]])).to(dtype)
    assert torch.equal(numbers(weight, bits), weight.float())


@pytest.mark.parametrize("bits", [4, 8])
def test_parts_are_quantised_alike(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 96, generator=torch.Generator().manual_seed(2))
    whole, made = numbers(weight, bits), quantize(weight, bits, torch.float32)
    monkeypatch.setattr(quantizing, "AT_ONCE", 1000)
    assert torch.equal(numbers(weight, bits), whole)
    outputs = torch.tensor([[3, 0], [36, 3]])
    assert torch.equal(made.rows(outputs), whole[outputs])
    assert made.num_bytes == weight.numel() * bits // 8 + weight.numel() // 32 * 2


def test_rows_are_read_by_number_and_products_with_a_transposed_weight_are_those_of_its_numbers() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(3))
    made = quantize(weight, 8, torch.float32)
    parameter = nn.Parameter(QuantizedParameter(made, torch.device("cpu")), requires_grad=False)
    whole, rows = numbers(weight, 8), torch.tensor([[5, 0], [63, 5]])
    with torch.inference_mode():
        assert torch.equal(parameter[5], whole[5]) and torch.equal(parameter[5, :], whole[5])
        assert torch.equal(parameter[rows], whole[rows])
        x = torch.randn(2, 3, 96, generator=torch.Generator().manual_seed(4))
        assert parameter.T.shape == (96, 64)
        torch.testing.assert_close(x @ parameter.T, x @ whole.T)


@pytest.mark.parametrize(
    ("architecture", "weights"),
    [("llama", "int8"), ("llama", "int4"), ("olmo_hybrid", "int8")],  # whose files have three tensors for one
)
def test_text_is_that_of_the_quantised_model(
    architecture: str, weights: str, checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = checkpoint_folder(architecture)
    engine = Engine.from_pretrained(str(folder), device="cpu", compile="off", step_times="off", weights=weights)
    reference = with_quantized_weights(load_reference(folder), engine)
    expected = generate_greedily(reference, PROMPT, NUM_TOKENS)
    for how in METHODS:
        assert tokens(engine, how) == expected, how


@pytest.mark.parametrize("weights", slow_except(["int8", "int4"], "int4"))
def test_text_of_native_code_is_that_of_the_quantised_model(
    weights: str, checkpoint_folder: Callable[[str], Path]
) -> None:
    find_compiler()
    folder = checkpoint_folder("llama")
    settings = {"device": "cpu", "step_times": "off", "weights": weights}
    reference = with_quantized_weights(
        load_reference(folder), Engine.from_pretrained(str(folder), compile="off", **settings)
    )
    engine = Engine.from_pretrained(str(folder), compile="on", **settings)
    expected = generate_greedily(reference, PROMPT, NUM_TOKENS)
    for how in METHODS:
        assert tokens(engine, how) == expected, how


@pytest.mark.parametrize(
    "architecture",
    slow_except(
        ["gemma2", "gpt2", "gpt_neox", "mixtral", "qwen3", "phi3", "starcoder2", "cohere", "falcon"], "gpt2", "mixtral"
    ),
)
def test_every_architecture_has_its_linear_layers_and_embeddings_quantised(
    architecture: str, checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = checkpoint_folder(architecture)
    engine = Engine.from_pretrained(str(folder), device="cpu", compile="off", step_times="off", weights="int4")
    model = engine.checkpoint.model.model
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert isinstance(module.weight, QuantizedParameter), name
            is_outer = isinstance(module, nn.Embedding) or module is model.get_output_embeddings()
            assert module.weight.quantized.format.bits == (8 if is_outer else 4), name
    reference = with_quantized_weights(load_reference(folder), engine)
    assert tokens(engine, Lookahead(5, 4, 5)) == generate_greedily(reference, PROMPT, NUM_TOKENS)


def test_a_number_of_inputs_that_has_no_groups_stays(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, intermediate_size=72)
    settings = ModelSettings(str(folder), device="cpu", weights=Weights.int8, compile=CompileMode.off)
    layer = load(settings).model.model.get_submodule("model.layers.0.mlp")
    assert isinstance(layer.up_proj.weight, QuantizedParameter)
    assert not isinstance(layer.down_proj.weight, QuantizedParameter)


def test_a_tiny_model_is_unpacked_for_its_own_forward_at_every_start(
    checkpoint_folder: Callable[[str], Path], own_cache: Path
) -> None:
    """Also where the check of its logits has passed before."""
    for _ in range(2):
        model = load(ModelSettings(str(checkpoint_folder("llama")), device="cpu", weights=Weights.int8)).model
        assert model.fast is None
        assert all(one.unpacked is not None for one in quantized_parameters(model.model))


def test_the_log_says_how_far_logits_are_from_the_checkpoints(
    checkpoint_folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lookahead")
    folder = checkpoint_folder("llama")
    engine = Engine.from_pretrained(str(folder), device="cpu", compile="off", step_times="off", weights="int4")
    (line,) = [one.getMessage() for one in caplog.records if "model.weights=int4" in one.getMessage()]
    assert line.endswith("The text is that of the quantised model")
    texts = text_probes(engine.checkpoint.tokenizer)
    given = torch.tensor([text[: min(map(len, texts))] for text in texts])
    with torch.no_grad():
        expected = load_reference(folder)(given).logits
        found = with_quantized_weights(load_reference(folder), engine)(given).logits
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    error = 100 * ((found - expected).norm(dim=-1) / spread).median()
    same = 100 * (found.argmax(-1) == expected.argmax(-1)).float().mean()
    told = re.search(r"on (\d+) tokens of text the logits differ by ([\d.]+)% .* best one on (\d+)%", line)
    assert told and int(told[1]) == given.numel()
    assert float(told[2]) == pytest.approx(error.item(), rel=0.06) and float(told[3]) == pytest.approx(same, abs=1)


def test_a_checkpoint_that_is_quantised_already_is_refused(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS["awq"])
    with pytest.raises(ValueError, match=r"model\.weights=int8: .* quantised already \(awq\); use model\.weights=auto"):
        load(ModelSettings(str(folder), device="cpu", weights=Weights.int8))


def test_a_model_that_does_more_with_its_weights_is_refused(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", lambda layer, x: x * layer.up_proj.weight.abs().sum())
    with pytest.raises(CheckpointError, match=r"=int4: LlamaForCausalLM .* \(abs.* weights\); use model\.weights=auto"):
        load(ModelSettings(str(checkpoint_folder("llama")), device="cpu", weights=Weights.int4))


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match=r"model\.weights=int8: the weights of a GGUF file are read as they are; use"):
        load(ModelSettings(str(file), device="cpu", weights=Weights.int8))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are generations of x86-64")
@pytest.mark.parametrize("dtype", slow_except(["float32", "bfloat16"], "bfloat16"))
@pytest.mark.parametrize("processor", slow_except(["x86-64", "skylake-avx512", "sapphirerapids"], "sapphirerapids"))
def test_kernels_compile_for_processors_that_are_not_here(
    processor: str, dtype: str, checkpoint_folder: Callable[[str], Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without vectors of eight, with AVX-512, and with its pairs of bfloat16 and the matrix unit."""
    sources: list[Source] = []

    def note(given: Sequence[Source], folder: Path, remark: str) -> list[Path]:
        sources.extend(given)
        raise CannotBuild("they are compiled below")

    monkeypatch.setattr(build, "build_libraries", note)
    settings = ModelSettings(str(checkpoint_folder("llama")), dtype, "cpu", weights=Weights.int4)
    model = load(replace(settings, compile=CompileMode.off)).model
    with pytest.raises(CannotBuild):
        make_native(model, kept)
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in sources[0].flags]
    command = [*find_compiler(), *flags, "-fsyntax-only", f"-I{sources[0].headers}", "-x", "c++", "-"]
    for source in sources:
        done = subprocess.run(command, input=source.text, capture_output=True, text=True)
        assert not done.returncode, done.stderr
