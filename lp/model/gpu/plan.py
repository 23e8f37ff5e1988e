"""A program as a list of things to start on a GPU: stage kernels, products, attention and collectives, bound to their
weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lp.model.gpu.stage import Argument, StageKernel, write_stage
from lp.model.gpu.terms import NestedTotal
from lp.model.program.record import Inexpressible
from lp.model.program.schedule import Stage
from lp.model.program.steps import (
    AllGather,
    AllReduce,
    Attention,
    Collective,
    Constant,
    Convolution,
    ExpertProduct,
    Lookup,
    Product,
    Program,
    Recurrence,
    Scan,
    Shared,
    Statement,
    TopK,
    Value,
    reads,
    written,
)
from lp.model.quantization.packed import PackedWeight, packed_experts
from lp.platform.build import compiled

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
# The largest head dimension for which attention's tiles fit a GPU's shared memory.
LARGEST_HEAD = 512


@dataclass(frozen=True)
class RunStage:
    """kernel: compiled. arguments: values, stores, slots, or tensors of constants. outputs: values to allocate."""

    kernel: Any
    arguments: tuple[Argument | Tensor, ...]
    num_programs: int
    num_warps: int
    outputs: tuple[Value, ...]
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunProduct:
    """weight: [K, N]. bias: [N]."""

    step: Product
    weight: Tensor
    bias: Tensor | None
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunPackedProduct:
    """A product with a quantised weight [K, N]. bias: [N]."""

    step: Product
    weight: PackedWeight
    bias: Tensor | None
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunLookup:
    """A lookup of rows of a quantised table."""

    step: Lookup
    table: PackedWeight
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunAttention:
    """is_last: no attention comes after it, so that rows without logits are not needed any more."""

    step: Attention
    is_last: bool
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunCollective:
    """What waits for the other ranks that share the model."""

    step: Collective
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunTopK:
    """The choice of the largest numbers of each row."""

    step: TopK
    last_uses: tuple[Value, ...]


@dataclass(frozen=True)
class RunExperts:
    """weight: [E, K, N], or packed with the outputs of all experts one behind the other. bias: [E, N]."""

    step: ExpertProduct
    weight: Tensor | PackedWeight
    bias: Tensor | None
    last_uses: tuple[Value, ...]


Instruction = RunStage | RunProduct | RunPackedProduct | RunLookup | RunAttention | RunCollective | RunTopK | RunExperts


def packed_weights(plan: Iterable[Instruction]) -> Iterator[PackedWeight]:
    """The quantised weights that a plan reads."""
    for one in plan:
        match one:
            case RunPackedProduct():
                yield one.weight
            case RunLookup():
                yield one.table
            case RunExperts(weight=PackedWeight() as weight):
                yield weight
            case _:
                pass


def make_plan(program: Program, stages: list[Stage], dtype: torch.dtype) -> list[Instruction]:
    """Raises Inexpressible."""
    if dtype not in FORMATS:
        raise Inexpressible(f"weights of {dtype}")
    attentions = [step for step in program.steps if isinstance(step, Attention)]
    for step in attentions:
        if (largest := max(step.head_dim, step.value_dim)) > LARGEST_HEAD:
            raise Inexpressible(f"attention with a head dimension of {largest}")
    return _Plan(program, stages, attentions[-1] if attentions else None).make()


class _Plan:
    def __init__(self, program: Program, stages: list[Stage], last: Attention | None):
        self._program = program
        self._stages = stages
        self._last = last
        self._made = set(map(id, program.inputs))
        self._bound: dict[int, Tensor] = {}

    def make(self) -> list[Instruction]:
        shared = self._shared()
        steps: list[StageKernel | Shared] = []
        for stage in self._stages:
            steps += _kernels(stage.statements, shared)
            steps += stage.shared
        uses = [self._uses(step) for step in steps]
        dies: dict[int, int] = {id(value): number for number, used in enumerate(uses) for value in used}
        kept = {id(value) for value in (*self._program.inputs, self._program.output)}
        return [
            self._instruction(step, tuple(one for one in used if dies[id(one)] == number and id(one) not in kept))
            for number, (step, used) in enumerate(zip(steps, uses, strict=True))
        ]

    def _shared(self) -> set[int]:
        """The values that several stages or instructions need, and so are in memory."""
        program = self._program
        shared = {id(value) for value in (*program.inputs, program.output)}
        stage_of: dict[int, int] = {}
        for number, stage in enumerate(self._stages):
            for step in (*stage.statements, *stage.shared):
                for value in [*(one.source for one in reads(step)), *written(step)]:
                    if isinstance(value, Value) and stage_of.setdefault(id(value), number) != number:
                        shared.add(id(value))
        return shared

    def _uses(self, step: StageKernel | Shared) -> list[Value]:
        if isinstance(step, StageKernel):
            return [one for one in step.arguments if isinstance(one, Value)]
        used = [*(one.source for one in reads(step)), *written(step)]
        return [one for one in used if isinstance(one, Value)]

    def _instruction(self, step: StageKernel | Shared, last_uses: tuple[Value, ...]) -> Instruction:
        if isinstance(step, StageKernel):
            values = [one for one in step.arguments if isinstance(one, Value)]
            outputs = tuple(value for value in values if id(value) not in self._made)
            self._made |= {id(value) for value in outputs}
            arguments = tuple(self._bind(one) for one in step.arguments)
            return RunStage(compiled(step.text), arguments, step.num_programs, step.num_warps, outputs, last_uses)
        self._made |= {id(value) for value in written(step)}
        match step:
            case Product():
                bias = None if step.bias is None else step.bias.tensor.detach().reshape(-1)
                if isinstance(step.weight, PackedWeight):
                    return RunPackedProduct(step, step.weight, bias, last_uses)
                assert isinstance(step.weight, Tensor), "weights on a GPU are packed for it"
                return RunProduct(step, step.weight.detach(), bias, last_uses)
            case Lookup():
                assert isinstance(step.table, PackedWeight), "weights on a GPU are packed for it"
                return RunLookup(step, step.table, last_uses)
            case Attention():
                return RunAttention(step, step is self._last, last_uses)
            case AllReduce() | AllGather():
                return RunCollective(step, last_uses)
            case TopK():
                return RunTopK(step, last_uses)
            case Convolution() | Recurrence() | Scan():
                raise AssertionError("models with recurrent layers are not planned")
            case ExpertProduct():
                bias = None if step.bias is None else step.bias.tensor.detach().contiguous()
                if isinstance(step.weight, Tensor):
                    return RunExperts(step, step.weight.detach(), bias, last_uses)
                return RunExperts(step, packed_experts(step.weight), bias, last_uses)

    def _bind(self, argument: Argument) -> Argument | Tensor:
        if not isinstance(argument, Constant):
            return argument
        if id(argument) not in self._bound:
            self._bound[id(argument)] = argument.tensor.detach().contiguous()
        return self._bound[id(argument)]


def _kernels(statements: list[Statement], shared: set[int]) -> list[StageKernel]:
    """The kernels of a stage: one, or several if one adds up what another one has to write before.

    shared: the values that are in memory; those that one of these kernels leaves to another one are added.
    """
    try:
        kernel = write_stage(statements, shared)
    except NestedTotal as nested:
        cut = next(number for number, one in enumerate(statements) if one is nested.statement)
        before, after = statements[:cut], statements[cut:]
        needed = {id(operand.source) for one in after for operand in reads(one)}
        shared |= needed & {id(value) for one in before for value in written(one)}
        return [*_kernels(before, shared), *_kernels(after, shared)]
    return [kernel] if kernel else []
