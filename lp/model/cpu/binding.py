"""Binds a program's instructions to weights: packs those of products, and copies all other constants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from lp.model.cpu.build import Libraries
from lp.model.cpu.emit import Layer
from lp.model.cpu.quantized import PANEL, Norms, find_norms, kernel_format, pack_quantized, packed_bytes
from lp.model.cpu.source import Instruction, Source
from lp.model.cpu.weights import Arena, pack, packed_shape
from lp.model.program.steps import Constant, ExpertProduct, Product, Value, WeightKey, table_key, weight_key
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import QuantizedWeight

# Threads that pack weights side by side.
MOST_THREADS = 4
# What an argument of the native code is: memory for rows, a constant's or a weight's numbers, or a number.
Bound = Value | Tensor | int


@dataclass(frozen=True)
class BoundInstruction:
    """An Instruction whose arguments need nothing of the model any more."""

    kind: int
    number: int
    stage: int
    is_last: bool
    arguments: tuple[Bound, ...]


def bind(source: Source, libraries: Libraries) -> list[BoundInstruction]:
    """Packs every weight of a source's instructions once."""
    instructions = source.instructions
    weights, experts = _pack_all(instructions, PANEL)
    weights |= _pack_quantized(source, libraries)
    constants: dict[int, Tensor] = {}

    def bound(argument: object) -> Bound:
        match argument:
            case Layer():
                return argument.number
            case Product():
                return weights[weight_key(argument.weight)]
            case ExpertProduct(weight=QuantizedExperts() as weight):
                return weights[weight_key(weight)]
            case ExpertProduct():
                return experts[id(argument)]
            case Norms():
                library = libraries.formats[kernel_format(argument.weight.format)]
                return find_norms(argument.weight, library, weights[weight_key(argument.weight)])
            case QuantizedWeight():
                return weights[table_key(argument)]
            case Constant(is_table=True) if table_key(argument.tensor) in weights:
                return weights[table_key(argument.tensor)]
            case Constant():
                if id(argument) not in constants:
                    constants[id(argument)] = _as_read(argument)
                return constants[id(argument)]
            case Value() | int():
                return argument
        raise AssertionError(argument)

    return [
        BoundInstruction(one.kind, one.number, one.stage, one.is_last, tuple(bound(each) for each in one.arguments))
        for one in instructions
    ]


def _pack_all(instructions: list[Instruction], width: int) -> tuple[dict[WeightKey, Tensor], dict[int, Tensor]]:
    """Packs the weights of all products, and those of all experts: [experts, P, K / T, W, T], by ids of their steps."""
    arguments = [argument for one in instructions for argument in one.arguments]
    products = [one.weight for one in arguments if isinstance(one, Product)]
    weights = {weight_key(weight): weight.detach() for weight in products if isinstance(weight, Tensor)}
    of_experts = [(id(one), one.weight) for one in arguments if isinstance(one, ExpertProduct)]
    experts = {key: weight.detach() for key, weight in of_experts if isinstance(weight, Tensor)}
    shapes = {key: packed_shape(weight, width) for key, weight in weights.items()}
    expert_shapes = {key: (len(weight), *packed_shape(weight[0], width)) for key, weight in experts.items()}
    space = sum(Arena.space(shapes[key], weight.dtype) for key, weight in weights.items())
    arena = Arena(space + sum(Arena.space(expert_shapes[key], weight.dtype) for key, weight in experts.items()))
    packed = {key: arena.take(shapes[key], weight.dtype) for key, weight in weights.items()}
    packed_experts = {key: arena.take(expert_shapes[key], weight.dtype) for key, weight in experts.items()}
    pairs = list(zip(weights.values(), packed.values(), strict=True))
    for key, weight in experts.items():
        pairs += zip(weight.unbind(), packed_experts[key].unbind(), strict=True)
    with ThreadPoolExecutor(MOST_THREADS) as pool:  # copying lets other threads of Python go on
        list(pool.map(lambda pair: pack(*pair), pairs))
    return packed, packed_experts


def _pack_quantized(source: Source, libraries: Libraries) -> dict[WeightKey, Tensor]:
    """Packs the quantised weights of all products and lookups: uint8, as kernels/quantized.h reads them."""
    arguments = [argument for one in source.instructions for argument in one.arguments]
    found = [one.weight if isinstance(one, Product | ExpertProduct) else one for one in arguments]
    weights = {weight_key(one): one for one in found if isinstance(one, QuantizedWeight)}
    arena = Arena(sum(Arena.space((packed_bytes(one),), torch.uint8) for one in weights.values()))
    packed = {key: arena.take((packed_bytes(one),), torch.uint8) for key, one in weights.items()}

    def pack_one(key: WeightKey) -> None:
        pack_quantized(weights[key], libraries.formats[kernel_format(weights[key].format)], packed[key])

    with ThreadPoolExecutor(MOST_THREADS) as pool:
        list(pool.map(pack_one, weights))
    return packed


def _as_read(constant: Constant) -> Tensor:
    """A table in its own format, other constants in float32. A copy, so that the model's memory can be freed."""
    tensor = constant.tensor.detach()
    return (tensor if constant.is_table else tensor.float()).clone(memory_format=torch.contiguous_format)
