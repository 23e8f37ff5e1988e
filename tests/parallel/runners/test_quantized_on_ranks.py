"""Ranks read quantised weights as they are, or the parts of them that they hold, and give the text of transformers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.model.checkpoint import ModelSettings
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.quantize import Weights
from lp.platform.build import find_compiler
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.gguf_files import write_gguf
from tests.lp.model.quantization.test_quantize import with_quantized_weights
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks
from tests.quantized_checkpoints import KINDS, write_quantized
from tests.slow import exhaustive_except, slow_except

PROMPT = list(range(5, 35))
NUM_TOKENS = 16
# Two ranks of tp hold 128 of 256 inputs of an output projection: half of a K-quant's block.
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
K_QUANTS = ("Q4_K", "Q6_K", "Q5_K", "Q8_0")
# Blocks of 32 numbers, and of 256.
BLOCKS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("Q4_1", "Q8_0"), {"hidden_size": 128, "intermediate_size": 192, "tie_word_embeddings": True}),
    (K_QUANTS, WIDE),
]
SPLIT = [{"tp": 2}, {"pp": 2}, {"lp": 2, "tp": 2}]


class Held(NamedTuple):
    """What a rank has found. unpacked: names of matrices. num_bytes: of packed weights. warnings: of loading."""

    texts: list[list[int]]
    unpacked: list[str]
    num_bytes: int
    warnings: list[str]


def hold(
    mesh: Mesh, channel: Channel, path: str, axes: dict[str, int], compile: str = "off", weights: str = "auto"
) -> Held:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("lookahead").addHandler(handler)
    model = ModelSettings(path, device="cpu", compile=CompileMode(compile), weights=Weights(weights))
    (found,) = [held_by(engine, warnings) for engine in engines(mesh, path, [axes], model)]
    return found


def held_by(engine: Engine, warnings: list[str]) -> Held:
    parameters = dict(engine.checkpoint.model.model.named_parameters())
    quantized = {id(one.quantized): one.quantized for one in parameters.values() if isinstance(one, QuantizedParameter)}
    unpacked = [name for name, one in parameters.items() if one.dim() == 2 and not isinstance(one, QuantizedParameter)]
    num_bytes = sum(one.num_bytes for one in quantized.values())
    sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(NUM_TOKENS)
    texts = [
        engine.generate(PROMPT, decode=method, sampling=sampling, stopping=stopping).token_ids
        for method in (Autoregressive(), Auto())
    ]
    return Held(texts, unpacked, num_bytes, warnings)


def hold_all(path: str, axes: dict[str, int], *settings: str) -> list[Held]:
    num_ranks = torch.tensor([*axes.values()]).prod().item()
    return run_ranks(hold, int(num_ranks), path, axes, *settings)


@pytest.fixture
def write(tmp_path: Path, own_cache: Path) -> Callable[..., tuple[str, list[int]]]:
    """Writes a GGUF file. Returns its path, and the text of transformers on the unpacked weights."""

    def write(*kinds: str, **changes: Any) -> tuple[str, list[int]]:
        file = write_gguf(tmp_path / "Tiny.gguf", kinds=kinds, **changes)
        model = AutoModelForCausalLM.from_pretrained(unpacked_folder(str(file)), dtype=torch.float32)
        return str(file), generate_greedily(model, PROMPT, NUM_TOKENS, eos=[1])

    return write


@pytest.mark.parametrize(
    ("axes", "kinds", "sizes"),
    exhaustive_except(
        [(axes, *blocks) for axes in [{"lp": 2}, {"lp": 4}, *SPLIT] for blocks in BLOCKS],
        ({"tp": 2}, *BLOCKS[1]),
        ({"pp": 2}, *BLOCKS[1]),
        ({"lp": 2, "tp": 2}, *BLOCKS[0]),
        quick=[({"lp": 2}, *BLOCKS[0]), ({"tp": 2}, *BLOCKS[0]), ({"pp": 2}, *BLOCKS[0])],
    ),
    ids=str,
)
def test_the_text_is_that_of_transformers(
    axes: dict[str, int], kinds: tuple[str, ...], sizes: dict[str, Any], write: Callable[..., tuple[str, list[int]]]
) -> None:
    path, expected = write(*kinds, **sizes)
    for found in hold_all(path, axes):
        assert found.texts == [expected, expected]
        assert not found.unpacked and not found.warnings


@pytest.mark.parametrize(
    ("axes", "tied"),
    exhaustive_except(itertools.product(SPLIT[:2], [False, True]), ({"pp": 2}, False), ({"tp": 2}, True)),
    ids=str,
)
def test_the_text_of_native_code_is_that_of_transformers(
    axes: dict[str, int], tied: bool, write: Callable[..., tuple[str, list[int]]]
) -> None:
    find_compiler()
    path, expected = write(*K_QUANTS, **WIDE, tie_word_embeddings=tied)
    for found in hold_all(path, axes, "on" if "tp" in axes else "auto"):
        assert found.texts == [expected, expected]


@pytest.mark.parametrize(
    ("axes", "tied"), slow_except(itertools.product([{"tp": 2}, {"pp": 2}], [False, True]), ({"tp": 2}, True)), ids=str
)
def test_two_ranks_hold_half_of_the_packed_weights_each(
    axes: dict[str, int], tied: bool, write: Callable[..., tuple[str, list[int]]]
) -> None:
    """A tied table is one packed weight on each rank of tp, and on both stages of a pipeline."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "tie_word_embeddings": tied}
    path, _ = write("Q4_1", **sizes)
    (whole,) = run_ranks(hold, 1, path, {"lp": 1})
    halves = [found.num_bytes for found in hold_all(path, axes)]
    of_table = 300 * 128 * 20 // 32
    assert sum(halves) == whole.num_bytes + of_table * (tied and "pp" in axes)
    assert max(halves) < 0.6 * whole.num_bytes


def test_a_cut_that_packed_weights_cannot_have_unpacks_one_weight(write: Callable[..., tuple[str, list[int]]]) -> None:
    """Three heads of 16 numbers on each rank: 48 inputs of the output projection."""
    path, expected = write("Q4_0", "Q8_0", hidden_size=96, num_attention_heads=6, num_key_value_heads=6)
    outputs = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(3)]
    for found in hold_all(path, {"tp": 2}):
        assert found.texts == [expected, expected]
        assert found.unpacked == outputs
        (line,) = found.warnings
        assert line.startswith(f"{outputs[0]} and 2 other weights are unpacked to float32") and "parallel.tp" in line


@pytest.mark.parametrize(
    ("kind", "axes"),
    slow_except(
        [*((kind, {"tp": 2}) for kind in KINDS), *(("mixed", axes) for axes in SPLIT[1:])],
        *((kind, {"tp": 2}) for kind in ("gptq-zeros", "mxfp4")),
    ),
    ids=str,
)
def test_the_text_of_a_quantised_checkpoint_is_that_of_the_unpacked_one(
    kind: str, axes: dict[str, int], tmp_path: Path
) -> None:
    quantized, plain = write_quantized(tmp_path, KINDS[kind], tie_word_embeddings="lm_head" not in KINDS[kind].also)
    expected = generate_greedily(load_reference(plain), PROMPT, NUM_TOKENS, eos=[1])
    for found in hold_all(str(quantized), axes):
        assert found.texts == [expected, expected]
        assert not [name for name in found.unpacked if "_proj" in name] and not found.warnings


@pytest.mark.parametrize(
    ("weights", "axes"),
    exhaustive_except(
        itertools.product(["int8", "int4"], SPLIT),
        ("int8", {"lp": 2, "tp": 2}),
        ("int4", {"pp": 2}),
        quick=[("int4", {"tp": 2})],
    ),
    ids=str,
)
def test_the_text_of_weights_that_are_quantised_when_read_is_that_of_one_rank(
    weights: str, axes: dict[str, int], tmp_path: Path
) -> None:
    """Also where a cut lies within a group: at 16 inputs of the output projection."""
    folder = str(save_checkpoint(tmp_path, "llama", tie_word_embeddings=True))
    alone = Engine.from_pretrained(folder, device="cpu", compile="off", step_times="off", weights=weights)
    reference = with_quantized_weights(load_reference(Path(folder)), alone)
    expected = generate_greedily(reference, PROMPT, NUM_TOKENS, eos=[1])
    for found in hold_all(folder, axes, "off", weights):
        assert found.texts == [expected, expected]
        assert bool(found.warnings) == bool(found.unpacked) == ("tp" in axes)
