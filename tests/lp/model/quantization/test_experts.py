"""Quantised experts stay packed, and the text is that of `generate` on the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, dequantize
from gguf import quantize as quantize_blocks
from packaging.version import parse

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.make import make_native
from lp.model.fast_forward import SequenceRows
from lp.model.gguf import linked_file, unpacked_folder
from lp.model.quantization.joined import InterleavedWeight, JoinedWeight, QuantizedExperts
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.quantize import Weights, quantize
from lp.model.reference import relative_error
from lp.platform.build import find_compiler
from lp.request import DecodingMethod
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.gguf_files import write_gguf
from tests.lp.model.cpu.test_native_forward import read
from tests.lp.test_tree import random_tree
from tests.models import VOCAB_SIZE, generate_greedily, load_reference, save_checkpoint
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks
from tests.quantized_checkpoints import KINDS, write_quantized
from tests.slow import exhaustive_except, slow_except

MXFP4 = GGMLQuantizationType.MXFP4
PROMPT = [5, 9, 77, 5, 9, 41, 120, 5, 9]
NUM_TOKENS = 24
METHODS: list[DecodingMethod] = [Autoregressive(), Lookahead(5, 4, 5), Auto(rows=40, max_window=5)]
# Of each architecture, so that every group and block divides its numbers of inputs.
SIZES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 5},
    "mixtral": {"hidden_size": 64, "intermediate_size": 96},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 128},
}
CASES = [
    ("mxfp4", "gpt_oss"), ("gptq", "qwen3_moe"), ("gptq-zeros", "mixtral"), ("awq", "qwen3_moe"),
    ("packed-4", "qwen3_moe"), ("packed-4-zeros", "qwen3_moe"), ("packed-8", "mixtral"), ("int8", "qwen3_moe"),
    ("fp8", "qwen3_moe"), ("fp8-whole", "mixtral"), ("packed-mxfp4", "qwen3_moe"),
]  # fmt: skip


def write(folder: Path, kind: str, architecture: str) -> tuple[Path, Path]:
    return write_quantized(folder, KINDS[kind], architecture, SIZES[architecture])


def tokens(engine: Engine, how: DecodingMethod) -> list[int]:
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    return engine.generate(PROMPT, decode=how, sampling=Sampling(0.0, seed=3), stopping=stopping).token_ids


def experts_of(model: torch.nn.Module) -> list[QuantizedParameter]:
    """The weights of experts; all of them are quantised."""
    found = [weight for weight in model.parameters() if weight.dim() == 3]
    assert found and all(isinstance(one, QuantizedParameter) for one in found)
    return [one for one in found if isinstance(one, QuantizedParameter)]


@pytest.mark.parametrize(
    ("kind", "architecture", "compile"),
    exhaustive_except(
        [(*case, compile) for case in CASES for compile in ("on", "off")],
        *((*case, ("on", "off")[number % 2]) for number, case in enumerate(CASES) if number != 2),
        (*CASES[2], "on"),
        quick=[(*CASES[0], "off")],
    ),
)
def test_text_is_that_of_generate_on_the_unpacked_model(
    kind: str, architecture: str, compile: str, tmp_path: Path
) -> None:
    find_compiler()
    quantized, plain = write(tmp_path, kind, architecture)
    expected = generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(quantized), device="cpu", compile=compile, step_times="off")
    experts_of(engine.checkpoint.model.model)
    assert isinstance(engine.checkpoint.model.fast, NativeForward) == (compile == "on")
    for how in METHODS:
        assert tokens(engine, how) == expected, how
    assert len(set(expected)) > NUM_TOKENS / 3


def load_both(path: Path, dtype: str, kept: Path, weights: Weights = Weights.auto) -> tuple[CausalModel, NativeForward]:
    model = load(ModelSettings(str(path), dtype, "cpu", weights, compile=CompileMode.off)).model
    return model, make_native(model, kept)


@pytest.mark.parametrize(
    ("weights", "architecture", "dtype", "allowed"),
    exhaustive_except(
        [(weights, name, dtype, allowed)
         for weights in ("int8", "int4") for name in SIZES
         for dtype, allowed in (("float32", 1e-5), ("bfloat16", 0.1))],
        ("int8", "qwen3_moe", "float32", 1e-5), ("int8", "gpt_oss", "bfloat16", 0.1),
        ("int4", "mixtral", "bfloat16", 0.1),
        ("int4", "gpt_oss", "float32", 1e-5),
    ),
)  # fmt: skip
def test_native_code_gives_the_logits_of_weights_that_are_quantised_when_read(
    weights: str, architecture: str, dtype: str, allowed: float, tmp_path: Path, kept: Path
) -> None:
    path = save_checkpoint(tmp_path, architecture, seed=2, **SIZES[architecture])
    model, native = load_both(path, dtype, kept, Weights(weights))
    assert {one.quantized.format.bits for one in experts_of(model.model)} == {int(weights[3:])}
    cache, rng = model.make_cache(1), np.random.default_rng(0)
    for num_rows in (40, 1, 2, 9, 70):  # rounding may send rows to other experts in 16 bits
        tree = random_tree(rng, num_rows)
        own = model.forward(tree, cache, num_rows)
        assert relative_error(native([SequenceRows(tree, cache, num_rows)]), own) < allowed, num_rows
        cache.keep(tree.path(num_rows - 1))


@pytest.mark.parametrize(
    ("kind", "architecture", "dtype"),
    exhaustive_except(
        [(kind, name, dtype) for kind, name in CASES[:3] for dtype in ("float32", "bfloat16")],
        ("gptq", "qwen3_moe", "float32"),
        ("mxfp4", "gpt_oss", "bfloat16"),
    ),
)
def test_a_row_does_not_depend_on_the_others(
    kind: str, architecture: str, dtype: str, tmp_path: Path, kept: Path
) -> None:
    """A row's logits are the same to the last bit, however many rows an expert gets."""
    _, native = load_both(write(tmp_path, kind, architecture)[0], dtype, kept)
    text = np.random.default_rng(1).integers(2, VOCAB_SIZE, 150).tolist()

    expected = read(native, text, [1] * len(text))
    for chunks in ([150], [7, 64, 79], [3] * 50):
        assert torch.equal(read(native, text, chunks), expected), chunks


def texts_of_ranks(mesh: Mesh, channel: Channel, folders: list[str], axis: str) -> list[list[list[int]]]:
    found = []
    for folder in folders:
        for engine in engines(mesh, folder, [{axis: mesh.num_ranks}]):
            if axis == "tp":
                experts_of(engine.checkpoint.model.model)
            found.append([tokens(engine, how) for how in METHODS])
    return found


@pytest.mark.parametrize("axis", slow_except(["lp", "tp", "pp"]))
def test_text_of_ranks_is_that_of_generate_on_the_unpacked_model(axis: str, tmp_path: Path) -> None:
    """Under tp, ranks hold parts of experts, which stay packed."""
    pairs = [write(tmp_path / kind, kind, name) for kind, name in (("mxfp4", "gpt_oss"), ("packed-4", "qwen3_moe"))]
    expected = [generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS) for _, plain in pairs]
    for found in run_ranks(texts_of_ranks, 2, [str(quantized) for quantized, _ in pairs], axis):
        assert found == [[one] * len(METHODS) for one in expected]


@pytest.mark.parametrize("architecture", slow_except(["qwen3moe", "qwen2moe"]))
def test_experts_of_gguf_files_stay_packed(architecture: str, tmp_path: Path, own_cache: Path) -> None:
    sizes, kinds = {"hidden_size": 256, "intermediate_size": 256, "num_experts": 4}, ("Q4_K", "Q6_K", "Q8_0")
    if architecture == "qwen2moe":  # transformers takes the sizes of experts from its defaults
        sizes |= {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
        kinds = ("Q8_0", "Q4_0")
    else:
        sizes |= {"moe_intermediate_size": 768, "head_dim": 64}
    file = write_gguf(tmp_path / "tiny.gguf", architecture=architecture, kinds=kinds, **sizes)
    engine = Engine.from_pretrained(str(file), device="cpu", dtype="float32", compile="on", step_times="off")
    assert linked_file(engine.checkpoint.path) == file.resolve()
    model = engine.checkpoint.model
    assert len({one.quantized.format.name for one in experts_of(model.model)}) > 1
    expected = tokens(Engine.from_pretrained(str(file), device="cpu", dtype="float32", compile="off"), METHODS[0])
    unpacked = generate_greedily(load_reference(Path(unpacked_folder(str(file)))), PROMPT, NUM_TOKENS)
    assert expected == unpacked
    for how in METHODS:
        assert tokens(engine, how) == expected, how


@pytest.mark.skipif(parse(transformers.__version__) < parse("5.18"), reason="transformers reads no such tokenizer")
def test_text_of_a_gguf_file_of_gpt_oss_is_that_of_generate_on_the_unpacked_model(
    tmp_path: Path, own_cache: Path
) -> None:
    """Gates and ups of experts are apart in the file, and take turns in the model."""
    file = write_gguf(tmp_path / "tiny.gguf", architecture="gpt-oss", kinds=("MXFP4",))
    reference = load_reference(tmp_path / "tiny-checkpoint")
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            if weight.dim() == 1 or name.endswith("bias") or "router" in name:
                continue
            by_output = weight.mT if weight.dim() == 3 else weight
            packed = quantize_blocks(by_output.contiguous().view(-1, by_output.shape[-1]).numpy(), MXFP4)
            rounded = torch.from_numpy(dequantize(packed, MXFP4)).view(by_output.shape)
            weight.copy_(rounded.mT if weight.dim() == 3 else rounded)
    expected = generate_greedily(reference, PROMPT, NUM_TOKENS)
    engine = Engine.from_pretrained(str(file), device="cpu", dtype="float32", compile="on", step_times="off")
    assert linked_file(engine.checkpoint.path) == file.resolve()
    assert {one.quantized.format.name for one in experts_of(engine.checkpoint.model.model)} == {"MXFP4"}
    for how in METHODS:
        assert tokens(engine, how) == expected, how


def test_joined_weights_have_the_numbers_of_their_parts() -> None:
    random = torch.Generator().manual_seed(0)
    parts = [quantize(torch.randn(size, 64, generator=random), 4, torch.float32) for size in (5, 3, 8)]
    numbers = torch.cat([torch.cat([*one.dequantized()]) for one in parts])
    joined = JoinedWeight(parts)
    assert joined.shape == (64, 16) and joined.num_bytes == sum(one.num_bytes for one in parts)
    assert torch.equal(torch.cat([*joined.dequantized()]), numbers)
    places = torch.tensor([[0, 15], [6, 5]])
    assert torch.equal(joined.rows(places), numbers[places])
    assert torch.equal(joined.numbers(4, 9).codes, torch.cat([one.numbers(0, 8).codes for one in parts])[4:9])
    eight = quantize(torch.randn(5, 64, generator=random), 8, torch.float32)
    with pytest.raises(ValueError, match="quantised to int4, and a part of it to int8"):
        QuantizedExperts([parts[0], eight])


def test_interleaved_weights_have_the_numbers_of_their_parts_in_turns() -> None:
    random = torch.Generator().manual_seed(0)
    parts = [quantize(torch.randn(7, 64, generator=random), 4, torch.float32) for _ in range(2)]
    numbers = torch.stack([torch.cat([*one.dequantized()]) for one in parts], dim=1).view(14, 64)
    interleaved = InterleavedWeight(parts)
    assert torch.equal(torch.cat([*interleaved.dequantized()]), numbers)
    places = torch.tensor([[0, 13], [6, 5]])
    assert torch.equal(interleaved.rows(places), numbers[places])
    for first, last in ((0, 14), (3, 8), (4, 5)):
        assert torch.equal(interleaved.numbers(first, last).codes, interleaved.numbers(0, 14).codes[first:last])
