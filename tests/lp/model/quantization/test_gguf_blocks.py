"""Blocks of GGUF files have the numbers of the package gguf, and texts are those of transformers on these numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from transformers import AutoModelForCausalLM, PreTrainedModel

from lp import Auto, Autoregressive, Engine, Lookahead, PromptLookup, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu.make import make_native
from lp.model.fast_forward import SequenceRows
from lp.model.gguf import checkpoint_folder, unpacked_folder
from lp.model.quantization.gguf_blocks import BLOCK_TYPES, GgufWeight
from lp.model.quantization.parameter import QuantizedParameter
from lp.tree import chain
from tests.gguf_files import blocks, write_gguf
from tests.lp.model.cpu.test_native_forward import read, relative_error
from tests.models import generate_greedily
from tests.slow import exhaustive_except

KINDS = [GGMLQuantizationType(kind) for kind in BLOCK_TYPES]
PROMPT = np.random.default_rng(5).integers(2, 250, 40).tolist()
# Wide enough for blocks of 256 inputs.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
ALLOWED = [("float32", 1e-5), ("bfloat16", 0.05)]
QUICK = ("Q4_K", "Q6_K")
MIXED = ("Q4_K", "Q6_K", "Q8_0", "Q5_0", "F16")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_package(kind: GGMLQuantizationType) -> None:
    made = blocks(np.random.default_rng(0).normal(size=(24, 768)).astype(np.float32), kind)
    expected = torch.from_numpy(gguf.dequantize(made, kind))
    weight = GgufWeight(torch.from_numpy(made), int(kind), torch.float32)
    assert weight.shape == (768, 24) and weight.num_bytes == made.size
    assert torch.equal(torch.cat([*weight.dequantized()]), expected)
    chosen = torch.tensor([[3, 0], [23, 3]])
    assert torch.equal(weight.rows(chosen), expected[chosen])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_of_zeros_are_zeros(kind: GGMLQuantizationType) -> None:
    made = blocks(np.zeros((2, 256), np.float32), kind)
    weight = GgufWeight(torch.from_numpy(made), int(kind), torch.float32)
    assert not weight.rows(torch.arange(2)).any()


@pytest.fixture
def write(tmp_path: Path, own_cache: Path) -> Callable[..., Path]:
    return lambda *kinds, **changes: write_gguf(tmp_path / f"{'-'.join(kinds)}.gguf", kinds=kinds, **SIZES | changes)


def reference(file: Path) -> PreTrainedModel:
    """The unpacked model, as transformers runs it."""
    folder = unpacked_folder(str(file))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("kind", "dtype", "allowed"),
    exhaustive_except(
        [(kind.name, *how) for kind in KINDS for how in ALLOWED],
        *((kind.name, *ALLOWED[number % 2]) for number, kind in enumerate(KINDS) if kind.name not in QUICK),
        ("Q6_K", *ALLOWED[1]),
        quick=[("Q4_K", *ALLOWED[0])],
    ),
)
def test_the_native_forward_gives_the_unpacked_models_logits(
    kind: str, dtype: str, allowed: float, write: Callable[..., Path], kept: Path
) -> None:
    """And each row's are the same to the last bit, whatever other rows are in the step."""
    folder = checkpoint_folder(str(write(kind, tie_word_embeddings=kind[0] == "Q")))
    model = load(ModelSettings(folder, dtype, "cpu", compile=CompileMode.off)).model
    assert isinstance(model.model.get_input_embeddings().weight, QuantizedParameter)
    native = make_native(model, kept)
    cache = model.make_cache(1)
    for num_rows in (1, 2, 3, 5, 8, 9, 17, 70):
        tree = chain((PROMPT * 2)[:num_rows])
        cache.length = 0
        own = model.forward(tree, cache, num_rows)
        assert relative_error(native([SequenceRows(tree, cache, num_rows)]), own) < allowed, num_rows
    text = (PROMPT * 3)[:90]
    expected = read(native, text, [1] * len(text))
    for chunks in ([90], [7, 64, 19], [30, 1, 1, 33, 25]):
        assert torch.equal(read(native, text, chunks), expected), chunks


@pytest.mark.parametrize("compile", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_the_text_is_that_of_transformers(compile: str, write: Callable[..., Path], own_libraries: Path) -> None:
    """The file has several types of blocks, and rows of 16 bits among them. The kernels that are begun before its
    vocabulary is read are those that its forward needs.
    """
    file = write(*MIXED)
    expected = generate_greedily(reference(file), PROMPT, 24, eos=[1])
    engine = Engine.from_pretrained(str(file), "float32", device="cpu", step_times="off", compile=compile)
    for method in (Autoregressive(), Lookahead(), PromptLookup(), Auto()):
        done = engine.generate(PROMPT, decode=method, sampling=Sampling(temperature=0.0), stopping=Stopping(24))
        assert done.token_ids == expected, method
    assert len([*own_libraries.glob("*/products.so")]) == (len(MIXED) - 1 if compile == "on" else 0)


def test_nothing_is_unpacked_to_the_disk(write: Callable[..., Path], tmp_path: Path) -> None:
    file = write("Q8_0")
    engine = Engine.from_pretrained(str(file), device="cpu", step_times="off", compile="off")
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]
    weights = engine.checkpoint.model.weight_bytes
    assert weights < 1.1 * file.stat().st_size


def test_types_that_kernels_cannot_read_are_unpacked(
    write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """F16 is a plain number, TQ2_0 is not."""
    caplog.set_level("INFO", logger="lookahead")
    file = write("TQ2_0", "F16")
    expected = generate_greedily(reference(file), PROMPT, 8, eos=[1])
    engine = Engine.from_pretrained(str(file), "float32", device="cpu", step_times="off", compile="off")
    done = engine.generate(PROMPT, decode=Autoregressive(), sampling=Sampling(temperature=0.0), stopping=Stopping(8))
    assert done.token_ids == expected
    assert any("unpacked to float32: " in line and " in TQ2_0" in line for line in caplog.messages)
