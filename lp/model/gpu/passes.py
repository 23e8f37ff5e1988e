"""Changes to a program that save kernels and bytes on a GPU, and nothing else.

R rows, K inputs, N outputs of a product
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lp.model.program.schedule import round_inputs
from lp.model.program.steps import (
    Attention,
    Constant,
    Gather,
    Keep,
    Map,
    Operand,
    Product,
    Program,
    Reduce,
    Round,
    Step,
    Value,
    WeightKey,
    reads,
    table_key,
    weight_key,
    written,
)


def merge_products(program: Program, parameters: Iterable[Tensor]) -> None:
    """Makes one product of those that multiply the same rows. Their weights become one tensor.

    parameters: the model's own. Those that are merged become views of that tensor, so the model's own forward goes on,
    and nothing is held twice.
    """
    owners = {table_key(parameter.detach()): parameter for parameter in parameters if parameter.dim() == 2}
    groups: dict[tuple[int, Operand, bool], list[Product]] = defaultdict(list)
    for step in program.steps:
        if isinstance(step, Product) and step.out is not program.logits and step.weight.t().is_contiguous():
            groups[id(step.x.source), step.x, step.bias is None].append(step)
    moved: dict[int, tuple[Value, int]] = {}
    merged: dict[int, Product | None] = {}
    for group in groups.values():
        if len(group) > 1:
            product = _merge(group, owners)
            start = 0
            for number, one in enumerate(group):
                moved[id(one.out)] = product.out, start
                start += one.out.width
                merged[id(one)] = None if number else product
    steps = [merged.get(id(step), step) for step in program.steps]
    program.steps = [_moved(step, moved) for step in steps if step is not None]


@torch.no_grad()
def _merge(group: list[Product], owners: Mapping[WeightKey, Tensor]) -> Product:
    weight = torch.cat([one.weight.t() for one in group])
    for one, part in zip(group, weight.split([one.out.width for one in group]), strict=True):
        if (owner := owners.get(weight_key(one.weight))) is not None:
            owner.data = part
    biases = [one.bias.tensor for one in group if one.bias is not None]
    bias = Constant(torch.cat([one.reshape(-1) for one in biases])) if biases else None
    return Product(Value(sum(one.out.width for one in group)), group[0].x, weight.t(), bias)


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
        case Gather():
            return replace(step, index=of(step.index))
        case Round() | Keep():
            return replace(step, source=of(step.source))
        case Product():
            return replace(step, x=of(step.x))
        case Attention():
            return replace(step, query=of(step.query))


def choose_formats(program: Program, dtype: torch.dtype) -> None:
    """Has products and attention read and write the model's 16-bit format. Everything else stays float32."""
    if dtype == torch.float32:
        return
    for step in program.steps:
        if isinstance(step, Product | Attention):
            step.out.is_half = True
    round_inputs(program)
    readers: dict[int, list[Step]] = defaultdict(list)
    for step in program.steps:
        for one in reads(step):
            readers[id(one.source)].append(step)
    for step in program.steps:
        value = written(step)
        if value is not None and all(isinstance(reader, Attention) for reader in readers[id(value)]):
            value.is_half = value is not program.logits
