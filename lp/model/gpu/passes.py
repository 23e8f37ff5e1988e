"""Changes to a program that save kernels and bytes on a GPU, and nothing else.

R rows, K inputs, N outputs of a product
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lp.model.program.schedule import round_inputs
from lp.model.program.steps import (
    AllGather,
    AllReduce,
    Attention,
    Constant,
    Convolution,
    ExpertProduct,
    Gather,
    Keep,
    Lookup,
    Map,
    Operand,
    Product,
    Program,
    Recurrence,
    Reduce,
    Round,
    Scan,
    Step,
    TopK,
    Value,
    WeightKey,
    reads,
    table_key,
    weight_key,
    written,
)
from lp.model.quantization.packed import PackedWeight, join
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.weight import QuantizedWeight


def merge_products(program: Program, parameters: Iterable[Tensor]) -> None:
    """Makes one product of those that multiply the same rows. Their weights become one, if they are of one format.

    parameters: the model's own. Those that are merged become views of that weight, so the model's own forward goes on,
    and nothing is held twice: the memory of the weights of a group is free before those of the next one are merged.
    """
    owners = {_key_of(parameter): parameter for parameter in parameters if parameter.dim() == 2}
    steps: list[Step | None] = list(program.steps)
    program.steps = []  # which would hold weights that have been merged
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        if isinstance(step, Product) and step.out is not program.output and (kind := _kind_of(step.weight)):
            groups[id(step.x.source), step.x, step.bias is None, kind].append(number)
    step = None
    moved: dict[int, tuple[Value, int]] = {}
    outs: list[Value] = []  # whose ids are in `moved`
    for numbers in groups.values():
        if len(numbers) > 1:
            product, parts = _merge([steps[number] for number in numbers], owners)
            steps[numbers[0]], start = product, 0
            for number in numbers[1:]:
                steps[number] = None
            for out in parts:
                moved[id(out)] = product.out, start
                start += out.width
            outs += parts
    program.steps = [_moved(step, moved) for step in steps if step is not None]


def _key_of(parameter: Tensor) -> WeightKey:
    """The name of the weight of a model's parameter, if a product has it."""
    quantized = isinstance(parameter, QuantizedParameter)
    return table_key(parameter.quantized if quantized else parameter.detach())


def _kind_of(weight: Tensor | QuantizedWeight) -> object | None:
    """What is equal of weights that can be merged; None if a weight cannot be."""
    if isinstance(weight, Tensor):
        return Tensor if weight.t().is_contiguous() else None
    assert isinstance(weight, PackedWeight), "weights on a GPU are packed for it"
    return weight.format, weight.num_inputs, *weight.planes.all()


@torch.no_grad()
def _merge(group: list[Any], owners: Mapping[WeightKey, Tensor]) -> tuple[Product, list[Value]]:
    """The product of a group, and the values that its parts are. group: products."""
    outs = [one.out for one in group]
    if isinstance(group[0].weight, Tensor):
        weight = _joined([one.weight.t() for one in group]).t()
        parts = weight.split([out.width for out in outs], dim=1)
    else:
        weight = join([one.weight for one in group])
        ends = [*accumulate(out.width for out in outs)]
        parts = [weight.part(end - out.width, end) for end, out in zip(ends, outs, strict=True)]
    for one, part in zip(group, parts, strict=True):
        match owners.get(weight_key(one.weight)), part:
            case QuantizedParameter() as owner, PackedWeight() as own:
                owner.quantized = own
            case Tensor() as owner, Tensor() as own:
                owner.data = own.t()
    biases = [one.bias.tensor for one in group if one.bias is not None]
    bias = Constant(torch.cat([one.reshape(-1) for one in biases])) if biases else None
    return Product(Value(sum(out.width for out in outs)), group[0].x, weight, bias), outs


def _joined(weights: list[Tensor]) -> Tensor:
    """Weights [N, K], one below the other: the memory in which they lie so already, or new memory."""
    first, end = weights[0], weights[0].storage_offset()
    for one in weights:
        if one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or one.storage_offset() != end:
            return torch.cat(weights)
        end += one.numel()
    return first.as_strided((sum(len(one) for one in weights), first.shape[1]), first.stride())


def _moved(step: Step, moved: dict[int, tuple[Value, int]]) -> Step:
    """The step, reading merged values in place of those that they hold."""

    def of(one: Operand) -> Operand:
        if id(one.source) not in moved:
            return one
        value, start = moved[id(one.source)]
        return Operand(value, one.start + start, one.strides)

    match step:
        case Map() | Reduce():
            return replace(step, inputs=tuple(of(one) for one in step.inputs))
        case Gather() | Lookup():
            return replace(step, index=of(step.index))
        case Round() | Keep():
            return replace(step, source=of(step.source))
        case Product() | AllReduce() | AllGather() | TopK():
            return replace(step, x=of(step.x))
        case ExpertProduct():
            return replace(step, x=of(step.x), experts=of(step.experts))
        case Attention():
            return replace(step, query=of(step.query))
        case Convolution() | Recurrence() | Scan():
            raise AssertionError("models with recurrent layers have no program on a GPU")


def look_up_apart(program: Program) -> None:
    """Has rows of quantised tables looked up by steps of their own."""
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Gather) and isinstance(step.table, QuantizedWeight):
            out = step.out.source
            assert isinstance(out, Value) and out.width == step.table.num_inputs, "a row is the whole of a value"
            step = Lookup(out, step.index, step.table)
        steps.append(step)
    program.steps = steps


def choose_formats(program: Program, dtype: torch.dtype) -> None:
    """Has products, lookups and attention read and write the model's 16-bit format. Everything else stays float32."""
    if dtype == torch.float32:
        return
    for step in program.steps:
        if isinstance(step, Product | Lookup | ExpertProduct | Attention):
            step.out.is_half = True
    round_inputs(program)
    readers: dict[int, list[Step]] = defaultdict(list)
    for step in program.steps:
        for one in reads(step):
            readers[id(one.source)].append(step)
    for step in program.steps:
        for value in written(step):
            if all(isinstance(reader, Attention) for reader in readers[id(value)]):
                value.is_half = value is not program.output
