"""The order in which a program's steps run: stages, between which threads wait for one another.

A stage has either statements, which compute each row alone, or steps that all threads share: products and attention,
which combine rows or share weights, and collectives. A step runs in the first stage in which its inputs are computed,
so steps that do not depend on one another share a stage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from lp.model.program.steps import (
    Attention,
    ExpertProduct,
    Keep,
    Operand,
    Product,
    Program,
    Round,
    Shared,
    Statement,
    Step,
    Value,
    reads,
    written,
)


@dataclass(frozen=True)
class Stage:
    """Steps that run between two meetings of the threads: statements, or steps that the threads share."""

    statements: list[Statement]
    shared: list[Shared]


def round_inputs(program: Program, multiple: int = 1) -> None:
    """Has the inputs of all products rounded to the model's 16-bit format, each once, but for those that are in it.

    multiple: rounded inputs are padded with zeros to a multiple of this.
    """
    rounded: dict[tuple[int, int, int, int], Value] = {}
    steps: list[Step] = []

    def round_input(x: Operand, size: int, count: int = 1) -> Operand:
        """x: numbers side by side, or `count` pieces of them."""
        if isinstance(x.source, Value) and x.source.is_half:
            return x
        key = id(x.source), x.start, size, count
        if key not in rounded:
            rounded[key] = Value(count * (-(-size // multiple) * multiple), is_half=True)
            steps.append(Round(rounded[key], x, size, count))
        return Operand(rounded[key], 0, (1,))

    for step in program.steps:
        if isinstance(step, Product):
            step = replace(step, x=round_input(step.x, step.weight.shape[0]))
        elif isinstance(step, ExpertProduct):
            num_inputs, is_shared = step.shape[1], step.x.strides[0] == 0
            if is_shared:
                x = round_input(Operand(step.x.source, step.x.start, (1,)), num_inputs)
            else:
                x = round_input(step.x, num_inputs, step.num_choices)
            if x is not step.x:
                assert isinstance(x.source, Value)
                stride = 0 if is_shared else x.source.width // step.num_choices
                step = replace(step, x=Operand(x.source, x.start, (stride, 1)))
        steps.append(step)
    program.steps = steps


def schedule(program: Program) -> list[Stage]:
    """Stages of statements and of shared steps, in turns."""
    at: dict[int, int] = {id(value): 0 for value in program.inputs}
    kept: dict[int, int] = defaultdict(int)  # by layer: the stage in which its keys and values are written
    stages: dict[int, list[Step]] = defaultdict(list)
    for step in program.steps:
        ready = max((at[id(one.source)] for one in reads(step) if isinstance(one.source, Value)), default=0)
        if isinstance(step, Attention):
            ready = max(ready, kept[step.layer])
        is_shared = isinstance(step, Shared)
        stage = ready if ready % 2 == is_shared else ready + 1
        if is_shared and ready % 2 == 1:
            stage = ready + 2
        stages[stage].append(step)
        if isinstance(step, Keep):
            kept[step.layer] = max(kept[step.layer], stage)
        for out in written(step):
            at[id(out)] = max(at.get(id(out), 0), stage)
    return [_stage(stages[number]) for number in sorted(stages)]


def _stage(steps: list[Step]) -> Stage:
    statements = [one for one in steps if isinstance(one, Statement)]
    return Stage(statements, [one for one in steps if isinstance(one, Shared)])
