"""Makes a model's native forward: records it, turns it into a program, compiles that and binds it to the weights."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from lp.model.causal import CausalModel
from lp.model.fast.traced import RowsOnly
from lp.model.native.binding import BoundInstruction, bind
from lp.model.native.build import build
from lp.model.native.forward import NativeForward
from lp.model.native.lower import Lowering
from lp.model.native.memory import RowMemory
from lp.model.native.program import Keep, Program
from lp.model.native.record import Inexpressible, RecordedStep, Recorder, Recording
from lp.model.native.schedule import round_inputs, schedule
from lp.model.native.source import Source, write

# Rows of the two recordings, which differ in tokens and positions, too.
FEW_ROWS, MORE_ROWS = 5, 7


def make_native(model: CausalModel, folder: Path) -> NativeForward:
    """Raises Inexpressible for a model that has no native form, and CannotBuild if it cannot be compiled here.

    folder: where the compiled library is kept.
    """
    program, source = _translate(model, MORE_ROWS)
    with ThreadPoolExecutor(1) as beside:  # most of the work is a compiler's or copying, which lets Python go on
        made = beside.submit(_build_and_bind, source, folder)
        _check_general(model, source)
        library, instructions = made.result()
    shapes = {step.layer: (step.num_heads, step.head_dim) for step in program.steps if isinstance(step, Keep)}
    if sorted(shapes) != list(range(model.num_layers)):
        raise Inexpressible(f"attention in {len(shapes)} of its {model.num_layers} layers")
    memory = RowMemory(source.shared)
    return NativeForward(program, instructions, memory, library, [shapes[n] for n in sorted(shapes)], model.dtype)


def _check_general(model: CausalModel, source: Source) -> None:
    """Records the model anew. Raises Inexpressible if its program depends on the number of rows, tokens or positions.

    source: of the first recording.
    """
    _, other = _translate(model, FEW_ROWS)
    if source.text != other.text or len(source.instructions) != len(other.instructions):
        raise Inexpressible("what it does depends on the number of rows, on tokens or on positions")


def _build_and_bind(source: Source, folder: Path) -> tuple[ctypes.CDLL, list[BoundInstruction]]:
    """The library of a source, and its instructions with packed weights. Raises CannotBuild."""
    library = build(source.text, folder)
    return library, bind(source.instructions, library.panel())


def _translate(model: CausalModel, num_rows: int) -> tuple[Program, Source]:
    program = Lowering(_record(model, num_rows)).run()
    if model.dtype != torch.float32:
        round_inputs(program)
    return program, write(program, schedule(program), model.dtype)


def _record(model: CausalModel, num_rows: int) -> Recording:
    """Runs the model on `num_rows` rows without attention, and keeps what it does."""
    recorder = Recorder()
    tokens = torch.arange(num_rows) + num_rows
    positions = torch.arange(num_rows) * num_rows % model.max_length
    with torch.inference_mode(False), torch.no_grad(), recorder:
        output = model.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            past_key_values=RowsOnly(model.num_layers),
            use_cache=True,
            step=RecordedStep(kind=model.attention_kind, recorder=recorder),
        )
    return Recording(tokens, positions, output.logits, recorder.operations, recorder.changed)
