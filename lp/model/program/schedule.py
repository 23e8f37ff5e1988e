"""The order in which a program's steps run: stages, between which threads wait for one another.

A stage has statements, which treat every row by itself, and then the steps that all threads share: products and
attention, which combine rows or share weights, and collectives. A step runs in the first stage in which its inputs are
computed, so steps that do not depend on one another share a stage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from lp.model.program.steps import (
    Attention,
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
    """Steps that run between two meetings of the threads. statements: what treats every row by itself."""

    statements: list[Statement]
    shared: list[Shared]


def round_inputs(program: Program, multiple: int = 1) -> None:
    """Has the inputs of all products rounded to the model's 16-bit format, each once, but for those that are in it.

    multiple: rounded inputs are padded with zeros to a multiple of this.
    """
    rounded: dict[tuple[int, int, int], Value] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Product) and not (isinstance(step.x.source, Value) and step.x.source.is_half):
            size = step.weight.shape[0]
            key = id(step.x.source), step.x.start, size
            if key not in rounded:
                rounded[key] = Value(-(-size // multiple) * multiple, is_half=True)
                steps.append(Round(rounded[key], step.x, size))
            step = Product(step.out, Operand(rounded[key], 0, (1,)), step.weight, step.bias)
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
        out = written(step)
        if out is not None:
            at[id(out)] = max(at.get(id(out), 0), stage)
    return [_stage(stages[number]) for number in sorted(stages)]


def _stage(steps: list[Step]) -> Stage:
    statements = [one for one in steps if isinstance(one, Statement)]
    return Stage(statements, [one for one in steps if isinstance(one, Shared)])
