"""Quantised checkpoints: their numbers are those of the libraries that define them, their text that of `generate`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from lp import Auto, Autoregressive, DraftModel, Engine, Lookahead, PromptLookup, Sampling, SecondModel, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.quantization.experts import unpack_experts
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.parameter import QuantizedParameter
from lp.platform.build import find_compiler
from lp.request import DecodingMethod
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks
from tests.quantized_checkpoints import KINDS, Kind, gptq, write_quantized
from tests.slow import slow_except

PROMPT = [5, 9, 77, 5, 9, 41, 120, 5, 9]
NUM_TOKENS = 24
METHODS: list[DecodingMethod] = [Autoregressive(), Lookahead(5, 4, 5), PromptLookup(4, 5), Auto(rows=40, max_window=5)]
UP = "model.layers.1.mlp.up_proj"


def read(folder: Path, **settings: Any) -> torch.nn.Module:
    return load(ModelSettings(str(folder), device="cpu", compile=CompileMode.off, **settings)).model.model


def unpacked(weight: Tensor) -> Tensor:
    """float32: the numbers of a parameter."""
    if not isinstance(weight, QuantizedParameter):
        return weight
    if isinstance(weight.quantized, QuantizedExperts):
        return unpack_experts(weight.quantized, weight.is_transposed, torch.device("cpu"))
    return torch.cat([*weight.quantized.dequantized()])


def tokens(engine: Engine, how: DecodingMethod) -> list[int]:
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    return engine.generate(PROMPT, decode=how, sampling=Sampling(0.0, seed=3), stopping=stopping).token_ids


def refusal(folder: Path, **settings: Any) -> str:
    """The one-line message with which a checkpoint is refused."""
    with pytest.raises(ValueError) as raised:
        read(folder, **settings)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 500
    return message


def change(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def configure(folder: Path, **changes: Any) -> Path:
    """Changes quantization_config."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**config.get("quantization_config", {}), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_that_the_format_defines(kind: str, tmp_path: Path) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS[kind])
    model, expected = read(quantized), load_file(plain / "model.safetensors")
    some = torch.tensor([[3, 0], [17, 3]])
    for name, weight in model.named_parameters():
        is_quantized = "_proj" in name or name.removesuffix(".weight") in KINDS[kind].also
        assert isinstance(weight, QuantizedParameter) == is_quantized, name
        assert torch.equal(unpacked(weight), expected[name]), name
        if isinstance(weight, QuantizedParameter):
            assert torch.equal(weight.quantized.rows(some), expected[name][some])


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith(("packed", "int8", "float"))])
def test_numbers_are_those_of_compressed_tensors(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    settings = KINDS[kind].settings
    quantized, _ = write_quantized(tmp_path, KINDS[kind])
    stored = load_file(quantized / "model.safetensors")
    module = {part: stored[name] for name in stored for owner, _, part in [name.rpartition(".")] if owner == UP}
    if module["weight_scale"].is_floating_point():  # its dtype is that of the result
        module["weight_scale"] = module["weight_scale"].float()
    compressor: Any = BaseCompressor.get_value_from_registry(settings["format"])
    scheme = QuantizationScheme(**settings["config_groups"]["group_0"])
    expected = compressor.decompress(module, scheme)["weight"].float()
    assert torch.equal(unpacked(read(quantized).get_submodule(UP).weight), expected)


def test_numbers_of_fp8_and_mxfp4_are_those_of_transformers(tmp_path: Path) -> None:
    quantized, _ = write_quantized(tmp_path / "fp8", KINDS["fp8"])
    how = FineGrainedFP8Config(weight_block_size=KINDS["fp8"].settings["weight_block_size"], dequantize=True)
    expected = AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32, quantization_config=how)
    found = read(quantized)
    for name, weight in expected.named_parameters():
        assert torch.equal(unpacked(found.get_parameter(name)), weight), name
    quantized, _ = write_quantized(tmp_path / "mxfp4", KINDS["mxfp4"])
    stored = load_file(quantized / "model.safetensors")
    blocks, scales = (stored[f"{UP}.{part}"][None] for part in ("weight_blocks", "weight_scales"))
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0].t()
    assert torch.equal(unpacked(read(quantized).get_submodule(UP).weight), expected)


def test_numbers_of_awq_are_those_that_compressed_tensors_converts(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    quantized, _ = write_quantized(tmp_path, KINDS["awq"])
    stored = load_file(quantized / "model.safetensors")
    codes, zeros = AutoAWQConverter.unpack_awq(stored[f"{UP}.qweight"], stored[f"{UP}.qzeros"], 4)
    codes, zeros = AutoAWQConverter.reverse_awq_order(codes, zeros, 4)
    shifted = (codes & 15) - (zeros & 15).repeat_interleave(32, 0)
    expected = shifted * stored[f"{UP}.scales"].float().repeat_interleave(32, 0)
    assert torch.equal(unpacked(read(quantized).get_submodule(UP).weight), expected.t())


@pytest.mark.parametrize("kind", slow_except(KINDS, "gptq-zeros", "awq", "packed-4", "fp8", "mxfp4"))
def test_text_is_that_of_generate_on_the_unpacked_model(kind: str, tmp_path: Path) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS[kind])
    expected = generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(quantized), device="cpu", compile="off", step_times="off")
    for how in METHODS:
        assert tokens(engine, how) == expected, how
    assert len(set(expected)) > NUM_TOKENS / 3


@pytest.mark.parametrize("kind", slow_except(["gptq-zeros", "int8", "fp8", "packed-mxfp4", "mixed"], "gptq-zeros"))
def test_text_of_native_code_is_that_of_generate_on_the_unpacked_model(kind: str, tmp_path: Path) -> None:
    find_compiler()
    quantized, plain = write_quantized(tmp_path, KINDS[kind])
    expected = generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(quantized), device="cpu", compile="on", step_times="off")
    for how in METHODS:
        assert tokens(engine, how) == expected, how


def texts_of_ranks(mesh: Mesh, channel: Channel, folder: str) -> list[list[int]]:
    return [tokens(engine, how) for engine in engines(mesh, folder, [{"lp": mesh.num_ranks}]) for how in METHODS]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_text_of_ranks_is_that_of_generate_on_the_unpacked_model(num_ranks: int, tmp_path: Path) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS["gptq_v2"])
    expected = generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)
    for found in run_ranks(texts_of_ranks, num_ranks, str(quantized)):
        assert found == [expected] * len(METHODS)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS["packed-4-zeros"], tie_word_embeddings=True)
    model = read(quantized)
    assert model.get_submodule("lm_head").weight is model.get_submodule("model.embed_tokens").weight
    engine = Engine.from_pretrained(str(quantized), device="cpu", compile="off", step_times="off")
    assert tokens(engine, METHODS[1]) == generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)


def test_a_second_model_may_be_quantised(tmp_path: Path) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS["awq"])
    settings = {"device": "cpu", "compile": "off", "step_times": "off"}
    engine = Engine.from_pretrained(str(plain), draft=SecondModel(str(quantized)), **settings)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    completion = engine.generate(PROMPT, decode=DraftModel(), sampling=Sampling(0.0), stopping=stopping)
    assert completion.token_ids == generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)
    assert completion.stats.tokens_per_step > 1.5


def test_other_numbers_are_in_the_models_dtype(tmp_path: Path) -> None:
    model = read(write_quantized(tmp_path, KINDS["packed-4"])[0], dtype="bfloat16")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_the_log_says_what_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lookahead")
    read(write_quantized(tmp_path, KINDS["float"])[0])
    assert "compressed-tensors weights: 14 in FP8" in caplog.text and "the text is that of the quantised" in caplog.text
    assert "made for quantised activations as well; here they stay in float32" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes"}, ["bitsandbytes", "gptq", "awq", "compressed-tensors", "fp8", "GGUF"]),
        ({"load_in_4bit": True}, ["bitsandbytes"]),
        ({"quant_method": "hqq"}, ["hqq"]),
        ({"quant_method": "quanto", "weights": "int8"}, ["quanto"]),
        ({"bits": 4}, ["a method without a name"]),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, ["gptq to 3 bits"]),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, ["gptq in the format marlin"]),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*up.*": {"bits": 2}}}, ["gptq to 2 bits"]),
        ({"quant_method": "gptq"}, ["gptq, but its quantization_config makes no sense", "bits"]),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, ["awq in the format gemv"]),
        ({"quant_method": "fp8", "fmt": "e5m2"}, ["fp8 in the format e5m2"]),
        ({**KINDS["packed-4"].settings, "format": "nvfp4-pack-quantized"}, ["in the format nvfp4-pack-quantized"]),
        ({**KINDS["packed-4"].settings, "transform_config": {"config_groups": {"u": {}}}}, ["transforms"]),
        ({**KINDS["packed-4"].settings, "sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparse weights"]),
    ],
)
def test_what_cannot_be_read_is_refused_before_weights_are(
    settings: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    folder = configure(save_checkpoint(tmp_path), **settings)
    (folder / "model.safetensors").write_bytes(b"")
    message = refusal(folder)
    assert "the checkpoint is quantised by " in message
    assert not [word for word in words if word not in message]


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS["gptq"])
    change(folder, lambda all: all.update({f"{UP}.g_idx": all[f"{UP}.g_idx"].flip(0)}))
    message = refusal(folder)
    assert UP in message and "act-order, desc_act=true" in message and "desc_act=false" in message


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("gptq", "qweight", ["qweight", "bits"]),
        ("gptq", "qzeros", ["qzeros", "must be"]),
        ("gptq", "scales", ["qweight", "64 inputs in 1 groups of 32"]),
        ("awq", "qweight", ["qweight", "must be"]),
        ("packed-4", "weight_packed", ["weight_packed", "must be"]),
        ("packed-4", "weight_scale", ["weight_packed", "weight_scale"]),
        ("fp8", "weight", ["weight", "must be"]),
        ("fp8", "weight_scale_inv", ["weight_scale_inv", "must be"]),
        ("mxfp4", "weight_blocks", ["weight_blocks", "must be"]),
    ],
)
def test_a_tensor_of_another_shape_is_named(kind: str, name: str, words: list[str], tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS[kind])
    change(folder, lambda all: all.update({f"{UP}.{name}": all[f"{UP}.{name}"][:-1].clone()}))
    assert not [word for word in [UP, *words] if word not in refusal(folder)]


@pytest.mark.parametrize(("kind", "name"), [("gptq", "scales"), ("awq", "qzeros"), ("packed-4", "weight_scale")])
def test_a_missing_tensor_is_named(kind: str, name: str, tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS[kind])
    change(folder, lambda all: all.pop(f"{UP}.{name}"))
    assert f"no tensor {UP}.{name}, which {KINDS[kind].settings['quant_method']} needs" in refusal(folder)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS["fp8"])
    change(folder, lambda all: [all.pop(f"{UP}.{part}") for part in ("weight", "weight_scale_inv")])
    assert f"no tensor {UP}.weight" in refusal(folder)


def test_numbers_without_scales_are_refused(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS["fp8"])
    change(folder, lambda all: all.pop(f"{UP}.weight_scale_inv"))
    assert f"{UP}.weight is stored in F8_E4M3, without scales" in refusal(folder)


def test_a_tensor_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path, KINDS["packed-4"])
    change(folder, lambda all: all.update({f"{UP}.weight_global_scale": torch.ones(1)}))
    assert f"{UP} is quantised with weight_global_scale" in refusal(folder)


def test_groups_that_do_not_divide_the_inputs_are_refused(tmp_path: Path) -> None:
    """96 inputs in groups of 64 are two groups, as are 96 in groups of 48."""
    uneven = Kind({**KINDS["gptq"].settings, "group_size": 64}, lambda weight: _uneven(weight))
    folder, _ = write_quantized(tmp_path, uneven, intermediate_size=96)
    message = refusal(folder)
    assert "down_proj.qweight" in message and "96 inputs in 2 groups of 64" in message


def _uneven(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    if weight.shape[1] == 64:
        return gptq(4, has_zeros=True, offset=1, span=64)(weight)
    parts, numbers = gptq(4, has_zeros=True, offset=1, span=48)(weight)
    return {**parts, "g_idx": torch.arange(96, dtype=torch.int32) // 64}, numbers


def test_groups_of_few_inputs_are_refused(tmp_path: Path) -> None:
    small = Kind({**KINDS["gptq"].settings, "group_size": 16}, gptq(4, has_zeros=True, offset=1, span=16))
    assert "a multiple of 32" in refusal(write_quantized(tmp_path, small)[0])


@pytest.mark.parametrize("kind", ["fp8", "packed-4"])
def test_a_layer_of_which_some_experts_are_quantised_is_refused(kind: str, tmp_path: Path) -> None:
    folder = configure(save_checkpoint(tmp_path, "mixtral", **{"hidden_size": 64}), **KINDS[kind].settings)
    stored = load_file(folder / "model.safetensors")
    name = next(name for name in stored if ".experts." in name and name.endswith(".weight"))
    parts, _ = KINDS[kind].make(stored[name])
    change(folder, lambda all: all.pop(name))
    change(folder, lambda all: all.update({name.replace("weight", part): one for part, one in parts.items()}))
    message = refusal(folder)
    assert "experts" in message and "quantised" in message


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 0.999])
def test_a_cut_off_file_is_refused(share: float, tmp_path: Path) -> None:
    file = write_quantized(tmp_path, KINDS["awq"])[0] / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    message = refusal(file.parent)
    assert message.startswith(f"model.safetensors of '{file.parent}' cannot be read: ")
    assert message.endswith("copy or download it again")
