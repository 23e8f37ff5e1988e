"""Compiles the GPU kernels for GPUs that are not there, and reads what a program of them takes. Needs Triton.

Registers tell how many programs a multiprocessor holds at a time: it has 65,536 of them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lp.model.causal import CausalModel
from lp.model.gpu.attention import LEAST_ROWS, TENSOR_MEMORY, block_of_keys, choose_tile, num_merged, num_warps
from lp.model.gpu.experts import INPUTS as EXPERT_INPUTS
from lp.model.gpu.experts import OUTPUTS as EXPERT_OUTPUTS
from lp.model.gpu.experts import PAIRS
from lp.model.gpu.make import make_program
from lp.model.gpu.packed_product import ROWS_OF_LOOKUP, ROWS_OF_UNPACKING, constants_of, ways_of
from lp.model.gpu.packed_product import tile_of as tile_of_packed
from lp.model.gpu.plan import RunStage, make_plan
from lp.model.gpu.product import MANY, ROWS, block_of_inputs, tile_outputs
from lp.model.gpu.sinks import Store, power_of_two
from lp.model.gpu.split_product import tile_of
from lp.model.gpu.stage import Slots
from lp.model.program.schedule import schedule
from lp.model.program.steps import Value
from lp.model.quantization.checkpoints import E2M1, E4M3
from lp.model.quantization.packed import stored_scale
from lp.model.quantization.quantize import FORMATS
from lp.model.quantization.weight import WeightFormat
from lp.sampling.choosers import CHUNK, MOST_TOKENS, NUM_BEST
from lp.sampling.penalties import BLOCK, HEADER

ARCHITECTURES = (80, 86, 89, 90, 100)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Bytes of shared memory that a program may have.
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# Bytes of a thread's registers that may be kept in memory.
MOST_SPILLED = 64
# The same for attention, whose blocks of many keys were the fastest of what was measured although they spill: in the
# version of Triton with which they were measured, and in others.
MEASURED_WITH, MOST_SPILLED_BY_ATTENTION = "3.6.", (336, 320)
# Registers that a thread may have: all that there are, or as many as leave room for several programs.
ALL_REGISTERS, FEW_REGISTERS = 255, 128
# Numbers of a key and of a value.
HEAD_DIMS = (64, 64), (80, 80), (128, 128), (256, 256), (192, 128), (512, 512)
# What scores need besides the product: everything at once, and nothing.
ALL_SCORES = {"WINDOW": 4096, "CHUNK": 0, "SOFTCAP": 50.0, "HAS_SINKS": True}
PLAIN_SCORES = {"WINDOW": 0, "CHUNK": 0, "SOFTCAP": 0.0, "HAS_SINKS": False}
ATTENTION_ROWS, ROWS_AFTER_LONG, GROUPS = (1, 8, 64, 300), 64, 4
PRODUCT_ROWS = (16, 32, 64, 128)
# Endings of the names of integers that are multiples of 16, as models' are.
MULTIPLES = ("_stride", "num_inputs", "num_outputs", "share")
TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64", torch.int32: "i32",
    torch.uint8: "u8", torch.int8: "i8",
}  # fmt: skip
# Formats of quantised weights with each way to find a code's value, each kind of scales and of steps: those of
# model.weights=int4 and int8, and as GGUF files and FP8 checkpoints have them.
PACKED_FORMATS = (
    FORMATS[4],
    FORMATS[8],
    WeightFormat("Q4_K", 4, span=256, step=torch.uint8, has_minima=True, has_minimum_steps=True),
    WeightFormat("Q5_1", 5, has_minima=True),
    WeightFormat("Q6_K", 6, zero=32, span=256, group=16, step=torch.int8),
    WeightFormat("MXFP4", 4, codebook=E2M1, scale=torch.uint8),
    WeightFormat("IQ4_NL", 4, codebook=(-127.0, *map(float, range(15)))),
    WeightFormat("FP8", 8, codebook=E4M3, span=128, scale=torch.float32),
)
# Those of experts that stay packed.
EXPERT_FORMATS = ("int4", "int8", "MXFP4")
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
    "qwen3_moe": {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 16, "num_experts_per_tok": 8,
    },
}  # fmt: skip


def most_spilled_by_attention() -> int:
    """Bytes of a thread's registers that attention may keep in memory, compiled by the Triton that is installed."""
    import triton

    measured, other = MOST_SPILLED_BY_ATTENTION
    return measured if triton.__version__.startswith(MEASURED_WITH) else other


@dataclass(frozen=True)
class Resources:
    """registers: of a thread. spilled: bytes of a thread's registers kept in memory. shared: bytes of a program."""

    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants. types: of its arguments, as Triton writes them."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    most_registers: int = FEW_REGISTERS
    most_spilled: int = MOST_SPILLED

    def compile(self, architecture: int) -> Resources:
        made = self._compiled(architecture)
        found = _usage(made.asm["cubin"])
        return Resources(found["REG"], found["STACK"] + found["LOCAL"], made.metadata.shared)

    def assembly(self, architecture: int) -> str:
        """PTX, which says what the GPU must do in which order."""
        return self._compiled(architecture).asm["ptx"]

    def fault(self, found: Resources, architecture: int) -> str:
        """What is beyond the limits; empty if nothing is."""
        limits = [
            ("bytes spilled", found.spilled, self.most_spilled),
            ("registers", found.registers, self.most_registers),
            ("bytes of shared memory", found.shared, SHARED_MEMORY[architecture]),
        ]
        return ", ".join(f"{number} {what} ({most} at most)" for what, number, most in limits if number > most)

    def _compiled(self, architecture: int) -> Any:
        """What Triton makes of it. Pointers are multiples of 16, as well as the integers of MULTIPLES."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = list(self.kernel.arg_names)
        signature = {name: self.types.get(name, "constexpr") for name in names}
        aligned = {
            (number,): [["tt.divisibility", 16]]
            for number, name in enumerate(names)
            if "*" in signature[name] or (name.endswith(MULTIPLES) and signature[name] == "i32")
        }
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=self.constants, attrs=aligned)
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def variants(dtype: torch.dtype, architecture: int) -> Iterator[Variant]:
    """The kernels of a model in this format, in the shapes in which they run on a GPU."""
    for name in MODELS:
        yield from _stages(name, dtype)
    yield from _attention(dtype, architecture)
    yield from _products(dtype)
    yield from _split_products(dtype)
    yield from _packed_products(dtype)
    yield from _others(dtype)
    yield from _sampling()


@cache
def model_on_no_device(name: str, dtype: torch.dtype) -> CausalModel:
    config = AutoConfig.for_model(name, num_hidden_layers=2, vocab_size=32000, **MODELS[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return CausalModel(model, 4096, [0])


def _stages(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    """The stage kernels of a model, each text once."""
    program = make_program(model_on_no_device(name, dtype))
    plan = make_plan(program, schedule(program), dtype)
    stages = {one.kernel.fn: one for one in plan if isinstance(one, RunStage)}
    for number, stage in enumerate(stages.values()):
        types = {f"x{at}": _type_of(one, dtype) for at, one in enumerate(stage.arguments)}
        yield Variant(f"{name}, stage {number}", stage.kernel, types, {}, stage.num_warps, 2)


def _type_of(argument: object, dtype: torch.dtype) -> str:
    match argument:
        case Slots():
            return "*i64"
        case Store():
            return f"*{TYPES[dtype]}"
        case Value():
            return "*i64" if argument.is_integer else f"*{TYPES[dtype]}" if argument.is_half else "*fp32"
        case torch.Tensor():
            return f"*{TYPES[argument.dtype]}"
    raise AssertionError(argument)


def _attention_types(dtype: torch.dtype) -> dict[str, str]:
    own = f"*{TYPES[dtype]}"
    return {
        "queries": own, "keys": own, "values": own, "sinks": own, "out": own, "parts": "*fp32", "sums": "*fp32",
        "counters": "*i32", "slots": "*i64", "sequence_of": "*i32", "row_starts": "*i32", "positions": "*i64",
        "visible": "*i1", "block_table": "*i32", "lengths": "*i32", "paths": "*i32", "num_rows": "i32",
        "max_pages": "i32", "query_stride": "i32", "head_stride": "i32", "scale": "fp32",
    }  # fmt: skip


def _attention(dtype: torch.dtype, architecture: int) -> Iterator[Variant]:
    """Heads of all sizes with all that scores may need, and those of most models without any of it, and with chunks."""
    for key_dim, value_dim in HEAD_DIMS:
        name = f"heads of {key_dim}" if key_dim == value_dim else f"heads of {key_dim} and {value_dim}"
        yield from _attention_of(name, key_dim, value_dim, ALL_SCORES, dtype, architecture)
    yield from _attention_of("plain heads of 128", 128, 128, PLAIN_SCORES, dtype, architecture)
    yield from _attention_of("heads of 128 in chunks", 128, 128, PLAIN_SCORES | {"CHUNK": 8192}, dtype, architecture)


def _attention_of(
    name: str, key_dim: int, value_dim: int, scores: dict[str, Any], dtype: torch.dtype, architecture: int
) -> Iterator[Variant]:
    from lp.model.gpu import attention_kernels, invariant_kernels

    types = _attention_types(dtype)
    widths = power_of_two(key_dim), power_of_two(value_dim)
    width = max(widths)
    has_tensor_memory = architecture // 10 in TENSOR_MEMORY
    shared = scores | {
        "HEADS": 8, "GROUPS": GROUPS, "HEAD_DIM": key_dim, "VALUE_DIM": value_dim, "PAGE": 256, "BLOCK_D": widths[0],
        "BLOCK_V": widths[1],
    }  # fmt: skip
    for rows, is_long in [*((rows, False) for rows in ATTENTION_ROWS), (ROWS_AFTER_LONG, True)]:
        tile = choose_tile(rows, GROUPS, width, dtype.itemsize, SHARED_MEMORY[architecture], is_long, has_tensor_memory)
        splits = 32 if rows == 1 else 4
        merged = num_merged(min(rows, tile.rows) * GROUPS, splits, widths[1], tile.warps)
        own = shared | {
            "ROWS": tile.rows, "BLOCK_M": tile.queries, "BLOCK_N": tile.keys, "SPLITS": splits, "MERGED": merged,
        }  # fmt: skip
        yield Variant(
            f"attention, {name}, {rows} rows{' after a long prefix' if is_long else ''}", attention_kernels.attend,
            types, own, tile.warps, tile.stages, ALL_REGISTERS, most_spilled_by_attention(),
        )  # fmt: skip
        if rows == ATTENTION_ROWS[0]:
            keys, warps = block_of_keys(LEAST_ROWS, width, dtype.itemsize), num_warps(LEAST_ROWS, width)
            yield Variant(
                f"attention in order, {name}", invariant_kernels.attend_in_order, types,
                shared | {"BLOCK_M": LEAST_ROWS, "BLOCK_N": keys}, warps, 2, ALL_REGISTERS,
            )  # fmt: skip


def _products(dtype: torch.dtype) -> Iterator[Variant]:
    from lp.model.gpu import expert_kernels, invariant_kernels

    own = f"*{TYPES[dtype]}"
    types = {
        "x": own, "weight": own, "bias": own, "out": own, "num_rows": "i32", "row_stride": "i32",
        "output_stride": "i32",
    }  # fmt: skip
    for num_outputs in (4096, 22016):
        constants = {
            "input_stride": 1, "K": 4096, "N": num_outputs, "HAS_BIAS": False, "BLOCK_M": ROWS,
            "BLOCK_N": tile_outputs(num_outputs), "BLOCK_K": block_of_inputs(dtype.itemsize),
        }  # fmt: skip
        warps = 8 if num_outputs >= MANY else 4
        yield Variant(
            f"product in order, {num_outputs} outputs", invariant_kernels.multiply, types, constants, warps, 3,
            ALL_REGISTERS,
        )  # fmt: skip
    types = {
        "x": own, "weight": own, "bias": own, "out": own, "pairs": "*i64", "expert_of": "*i64", "begins": "*i64",
        "ends": "*i64", "row_stride": "i32", "choice_stride": "i32", "expert_stride": "i64", "output_stride": "i32",
    }  # fmt: skip
    constants = {
        "input_stride": 1, "C": 8, "E": 128, "K": 2048, "N": 1536, "HAS_BIAS": True, "BLOCK_M": PAIRS,
        "BLOCK_N": EXPERT_OUTPUTS, "BLOCK_K": EXPERT_INPUTS,
    }  # fmt: skip
    yield Variant("product with experts", expert_kernels.multiply_experts, types, constants, 4, 3, ALL_REGISTERS)


def _split_products(dtype: torch.dtype) -> Iterator[Variant]:
    from lp.model.gpu import split_kernels

    own = f"*{TYPES[dtype]}"
    types = {
        "x": own, "weight": own, "bias": own, "out": own, "parts": "*fp32", "counters": "*i32", "num_rows": "i32",
        "num_inputs": "i32", "num_outputs": "i32", "share": "i32", "row_stride": "i32", "input_stride": "i32",
        "output_stride": "i32", "has_bias": "i32",
    }  # fmt: skip
    for rows in PRODUCT_ROWS:
        tile = tile_of(rows, dtype.itemsize)
        for what, stride in (("inputs", "input_stride"), ("outputs", "output_stride")):
            constants = {stride: 1, "BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs}
            own_types = {name: kind for name, kind in types.items() if name != stride}
            yield Variant(
                f"product of {rows} rows, {what} side by side", split_kernels.multiply_in_splits, own_types, constants,
                tile.num_warps, tile.num_stages, ALL_REGISTERS,
            )  # fmt: skip


def _packed_products(dtype: torch.dtype) -> Iterator[Variant]:
    from lp.model.gpu import packed_kernels

    own, integer = f"*{TYPES[dtype]}", "i32"
    types = {
        "x": own, "bias": own, "out": own, "parts": "*fp32", "counters": "*i32", "codes": "*u8", "upper": "*u8",
        "steps": "*i32", "codebook": "*fp32", "index": "*i64", "num_rows": integer, "num_inputs": integer,
        "num_outputs": integer, "num_blocks": integer, "first_output": integer, "row_stride": integer,
        "plane_stride": integer, "has_bias": integer, "pairs": "*i64", "expert_of": "*i64", "begins": "*i64",
        "ends": "*i64", "choice_stride": integer,
    }  # fmt: skip
    for format in PACKED_FORMATS:
        scale = "*fp32" if stored_scale(format) == torch.float32 else "*i32"
        own_types = types | {"scales": scale, "minima": scale}
        constants = constants_of(format, 4096)
        for rows in PRODUCT_ROWS if format is PACKED_FORMATS[0] else (PRODUCT_ROWS[0], PRODUCT_ROWS[-1]):
            tile = tile_of_packed(rows, dtype.itemsize)
            yield Variant(
                f"product of {rows} rows with {format.name}", packed_kernels.multiply_packed, own_types,
                constants | {"BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "MAY_BE_ODD": False}
                | ways_of(format, tile.scales_sums), tile.num_warps, tile.num_stages,
                ALL_REGISTERS,
            )  # fmt: skip
        if format.name in EXPERT_FORMATS:
            tile = tile_of_packed(PAIRS, dtype.itemsize)
            experts = {"C": 8, "E": 128, "K": 4096, "N": 1536, "HAS_BIAS": True}
            yield Variant(
                f"product with {format.name} experts", packed_kernels.multiply_packed_experts, own_types,
                constants | experts | ways_of(format, tile.scales_sums) | {"BLOCK_M": PAIRS, "BLOCK_N": tile.outputs},
                tile.num_warps, tile.num_stages, ALL_REGISTERS,
            )  # fmt: skip
        for has_index, block in ((True, ROWS_OF_LOOKUP), (False, ROWS_OF_UNPACKING)):
            what = "lookup in" if has_index else "unpacking of"
            yield Variant(
                f"{what} {format.name}", packed_kernels.unpack, own_types,
                constants | {"HAS_INDEX": has_index, "BLOCK_N": block}, 4, 2,
            )  # fmt: skip


def _others(dtype: torch.dtype) -> Iterator[Variant]:
    from lp.kv_cache import triton_kernels
    from lp.model.gpu import attention_kernels, invariant_kernels

    types = _attention_types(dtype)
    slots = {
        "slots": f"*{TYPES[dtype]}", "moves": "*i64", "move_starts": "*i64", "layer_stride": "i64",
        "token_stride": "i32", "most_moves": "i32",
    }  # fmt: skip
    merged = {"HEADS": 32, "VALUE_DIM": 128, "BLOCK_V": 128, "SPLITS": 64}
    yield Variant("moves of keys and values", triton_kernels.move, slots, {"BLOCK": 1024}, 4, 2)
    yield Variant("merge of splits", attention_kernels.merge, types, merged, 2, 2, ALL_REGISTERS)
    yield Variant("paths of rows", invariant_kernels.lay_paths, types, {"BLOCK": 64}, 4, 2)


def _sampling() -> Iterator[Variant]:
    from lp.sampling import triton_kernels

    types = {
        "scores": "*fp32", "choices": "*i64", "words": "*i32", "floats": "*fp32", "sums": "*fp32", "row_stride": "i32",
        "num_tokens": "i32", "num_chunks": "i32", "rounding": "fp32", "far": "fp32", "out": "*i64", "values": "*fp32",
        "tokens": "*i32",
    }  # fmt: skip
    penalties = {"scores": "*fp32", "words": "*i32", "floats": "*fp32", "row_stride": "i32"}
    truncated = {"MOST": MOST_TOKENS, "N": NUM_BEST, "BLOCK": 64}
    chunks = {"MOST": MOST_TOKENS, "BLOCK": CHUNK}
    rows = {"MOST": MOST_TOKENS, "BLOCK": 1024}
    most = ALL_REGISTERS
    yield Variant("best tokens of chunks", triton_kernels.best_of_chunks, types, chunks, 8, 2, most)
    yield Variant("best tokens of rows", triton_kernels.best_of_rows, types, rows, 4, 2, most)
    yield Variant("sums of chunks", triton_kernels.sums_of_chunks, types, {"BLOCK": CHUNK}, 4, 2, most)
    yield Variant("chosen tokens", triton_kernels.best_truncated, types | {"tokens": "*i64"}, truncated, 8, 2, most)
    yield Variant("penalties", triton_kernels.penalise, penalties, {"HEADER": HEADER, "BLOCK": BLOCK}, 4, 2, most)


def _usage(cubin: bytes) -> dict[str, int]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([cuobjdump(), "--dump-resource-usage", str(path)], capture_output=True, text=True)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text.stdout)}


@cache
def cuobjdump() -> str:
    """The path of the program that comes with Triton. Raises FileNotFoundError."""
    import triton

    found = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump"), None)
    if found is None:
        raise FileNotFoundError("this build of Triton has no cuobjdump")
    return str(found)
