"""What Triton's compiler makes of the kernels for three generations of GPUs: no spills, and few enough registers.

Nothing runs. Registers tell how many programs a multiprocessor holds at a time: it has 65,536 of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lp.model.causal import CausalModel
from lp.model.gpu.attention import block_of_keys, num_warps
from lp.model.gpu.make import make_program
from lp.model.gpu.plan import Instruction, RunStage, make_plan
from lp.model.gpu.product import INPUTS, MANY, ROWS, tile_outputs
from lp.model.gpu.sinks import Store
from lp.model.gpu.stage import Slots
from lp.model.program.schedule import schedule
from lp.model.program.steps import Value
from lp.platform.build import missing_triton
from lp.sampling.choosers import CHUNK, MOST_TOKENS, NUM_BEST
from lp.sampling.penalties import BLOCK, HEADER
from tests.lp.model.gpu.resources import ARCHITECTURES, SHARED_MEMORY, compile_for
from tests.slow import slow_except

pytestmark = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton() or "triton is there")

# Models of about 7B, on no device: only their shapes matter.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen3": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "gemma2": {
        "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256,
    },
    "olmo2": {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32},
}  # fmt: skip
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32",
}  # fmt: skip
# Bytes of a thread's registers that are kept in memory, and registers of a thread, at most.
MOST_SPILLED = 64
STAGE_REGISTERS, ATTENTION_REGISTERS, OTHER_REGISTERS = 128, 255, 128
ATTENTION_TYPES = {
    "queries": "*bf16", "keys": "*bf16", "values": "*bf16", "out": "*bf16", "parts": "*fp32", "sums": "*fp32",
    "slots": "*i64", "sequence_of": "*i32", "row_starts": "*i32", "positions": "*i64", "visible": "*i1",
    "block_table": "*i32", "lengths": "*i32", "paths": "*i32", "num_rows": "i32", "max_pages": "i32",
    "query_stride": "i32", "head_stride": "i32", "scale": "fp32",
}  # fmt: skip


@cache
def model_on_no_device(name: str) -> CausalModel:
    config = AutoConfig.for_model(name, num_hidden_layers=2, vocab_size=32000, **MODELS[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return CausalModel(model, 4096, [0])


@cache
def stages_of(name: str) -> list[RunStage]:
    """The stage kernels of a model, each text once."""
    model = model_on_no_device(name)
    program = make_program(model)
    plan: list[Instruction] = make_plan(program, schedule(program), torch.bfloat16)
    stages = {one.kernel.fn: one for one in plan if isinstance(one, RunStage)}
    return list(stages.values())


def type_of(argument: object) -> str:
    match argument:
        case Slots():
            return "*i64"
        case Store():
            return "*bf16"
        case Value():
            return "*i64" if argument.is_integer else "*bf16" if argument.is_half else "*fp32"
        case torch.Tensor():
            return TYPES[argument.dtype]
    raise AssertionError(argument)


@pytest.mark.parametrize("architecture", slow_except(ARCHITECTURES, ARCHITECTURES[0]))
@pytest.mark.parametrize("name", MODELS)
def test_stages_do_not_spill(name: str, architecture: int) -> None:
    for stage in stages_of(name):
        types = {f"x{number}": type_of(one) for number, one in enumerate(stage.arguments)}
        found = compile_for(architecture, stage.kernel, types, {}, stage.num_warps, 2)
        assert found.spilled <= MOST_SPILLED, found
        assert found.registers <= STAGE_REGISTERS, found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("block", [16, 32, 64])
def test_attention_does_not_spill(head_dim: int, block: int, architecture: int) -> None:
    from lp.model.gpu import attention_kernels, invariant_kernels

    width = {80: 128}.get(head_dim, head_dim)
    constants: dict[str, Any] = {
        "HEADS": 8, "GROUPS": 4, "HEAD_DIM": head_dim, "WINDOW": 4096, "SOFTCAP": 50.0, "PAGE": 256,
        "BLOCK_M": block, "BLOCK_N": block_of_keys(block, width), "BLOCK_D": width,
    }  # fmt: skip
    tiles = {"ROWS": block // 4, "SPLITS": 4}
    found = [
        compile_for(
            architecture, attention_kernels.attend, ATTENTION_TYPES, constants | tiles, num_warps(block, width), 2
        )
    ]
    if block == 16:
        found.append(compile_for(architecture, invariant_kernels.attend_in_order, ATTENTION_TYPES, constants, 4, 2))
    for one in found:
        assert one.spilled <= MOST_SPILLED, one
        assert one.registers <= ATTENTION_REGISTERS, one
        assert one.shared <= SHARED_MEMORY[architecture], one


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_kernels_do_not_spill(architecture: int) -> None:
    from lp.kv_cache import triton_kernels
    from lp.model.gpu import attention_kernels, invariant_kernels

    slots = {
        "slots": "*bf16",
        "moves": "*i64",
        "move_starts": "*i64",
        "layer_stride": "i64",
        "token_stride": "i32",
        "most_moves": "i32",
    }
    mover = compile_for(architecture, triton_kernels.move, slots, {"BLOCK": 1024}, 4, 2)
    assert mover.shared == 0, "each thread must store what it has loaded itself"
    constants = {"HEADS": 32, "HEAD_DIM": 128, "BLOCK_D": 128, "SPLITS": 16}
    found = [
        compile_for(architecture, attention_kernels.merge, ATTENTION_TYPES, constants, 2, 2),
        compile_for(architecture, invariant_kernels.lay_paths, ATTENTION_TYPES, {"BLOCK": 64}, 4, 2),
        mover,
    ]
    for num_outputs in (4096, 22016):
        types = {
            "x": "*bf16", "weight": "*bf16", "bias": "*bf16", "out": "*bf16", "num_rows": "i32", "row_stride": "i32",
            "output_stride": "i32",
        }  # fmt: skip
        constants = {
            "input_stride": 1, "K": 4096, "N": num_outputs, "HAS_BIAS": False, "BLOCK_M": ROWS,
            "BLOCK_N": tile_outputs(num_outputs), "BLOCK_K": INPUTS,
        }  # fmt: skip
        warps = 8 if num_outputs >= MANY else 4
        found.append(compile_for(architecture, invariant_kernels.multiply, types, constants, warps, 3))
    for one in found:
        assert one.spilled <= MOST_SPILLED, one
        assert one.registers <= OTHER_REGISTERS, one
        assert one.shared <= SHARED_MEMORY[architecture], one


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_that_choose_tokens_do_not_spill(architecture: int) -> None:
    from lp.sampling import triton_kernels

    types = {
        "scores": "*fp32", "choices": "*i64", "words": "*i32", "floats": "*fp32", "sums": "*fp32", "row_stride": "i32",
        "num_tokens": "i32", "num_chunks": "i32", "rounding": "fp32", "far": "fp32", "out": "*i64", "values": "*fp32",
        "tokens": "*i32",
    }  # fmt: skip
    penalties = {"scores": "*fp32", "words": "*i32", "floats": "*fp32", "row_stride": "i32"}
    found = [
        compile_for(architecture, triton_kernels.best_of_chunks, types, {"MOST": MOST_TOKENS, "BLOCK": CHUNK}, 8, 2),
        compile_for(architecture, triton_kernels.best_of_rows, types, {"MOST": MOST_TOKENS, "BLOCK": 1024}, 4, 2),
        compile_for(architecture, triton_kernels.sums_of_chunks, types, {"BLOCK": CHUNK}, 4, 2),
        compile_for(
            architecture, triton_kernels.settle, types | {"tokens": "*i64"},
            {"MOST": MOST_TOKENS, "N": NUM_BEST, "BLOCK": 64}, 8, 2,
        ),
        compile_for(architecture, triton_kernels.penalise, penalties, {"HEADER": HEADER, "BLOCK": BLOCK}, 4, 2),
    ]  # fmt: skip
    for one in found:
        assert one.spilled <= MOST_SPILLED, one
        assert one.registers <= ATTENTION_REGISTERS, one
