"""Makes a model's native forward: turns it into a program, compiles that and binds it to the weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.nn import Linear

from lp.kv_cache.cache import LayerShape
from lp.model.causal import CausalModel
from lp.model.cpu.binding import BoundInstruction, bind
from lp.model.cpu.build import Libraries, build
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.memory import RowMemory
from lp.model.cpu.source import Source, write
from lp.model.cpu.weights import MULTIPLE
from lp.model.program.latent import cache_latent_numbers
from lp.model.program.record import Inexpressible
from lp.model.program.schedule import round_inputs, schedule
from lp.model.program.screen import screen_output
from lp.model.program.steps import Program, table_key
from lp.model.program.translate import FEW_ROWS, MORE_ROWS, cache_shapes, translate
from lp.model.quantization.parameter import QuantizedParameter
from lp.platform.processor import processor_features

# The instructions without which kernels/screened.h saves nothing, as Linux names them (docs/log/kernels.md).
SCREENING = "avx2"


def make_native(model: CausalModel, folder: Path, is_checked: bool = False) -> NativeForward:
    """Raises Inexpressible for a model that has no native form, and CannotBuild if it cannot be compiled here.

    folder: where compiled libraries are kept. is_checked: whether the model is known to have one program for any
    number of rows.
    """
    program, source = _write(model, MORE_ROWS)
    with ThreadPoolExecutor(1) as pool:  # most of the work is a compiler's or copying, which lets Python go on
        made = pool.submit(_build_and_bind, source, folder)
        if not is_checked:
            _check_general(model, source)
        libraries, instructions = made.result()
    memory = RowMemory(source.shared)
    return NativeForward(program, instructions, memory, libraries, cache_shapes(program), source.states, model.dtype)


def find_cache_shapes(model: CausalModel) -> dict[int, LayerShape]:
    """What the native forward of a model would cache in each layer. Raises Inexpressible."""
    return cache_shapes(_translate(model, MORE_ROWS))


def _check_general(model: CausalModel, source: Source) -> None:
    """Records the model anew. Raises Inexpressible if its program depends on the number of rows, tokens or positions.

    source: of the first recording.
    """
    _, other = _write(model, FEW_ROWS)
    if source.fixed != other.fixed:
        raise Inexpressible("what it does depends on the number of rows, on tokens or on positions")


def _build_and_bind(source: Source, folder: Path) -> tuple[Libraries, list[BoundInstruction]]:
    """The libraries of a source, and its instructions with packed weights. Raises CannotBuild."""
    libraries = build(source, folder)
    return libraries, bind(source, libraries)


def _translate(model: CausalModel, num_rows: int) -> Program:
    program = translate(model, num_rows)
    cache_latent_numbers(program)
    return program


def _write(model: CausalModel, num_rows: int) -> tuple[Program, Source]:
    program = _translate(model, num_rows)
    if model.dtype != torch.float32:
        round_inputs(program, MULTIPLE)
    if isinstance(output := model.model.get_output_embeddings(), Linear):
        weight = output.weight
        program.keep_hidden(table_key(weight.quantized if isinstance(weight, QuantizedParameter) else weight))
    if SCREENING in processor_features():
        screen_output(program)
    return program, write(program, schedule(program), model.dtype)
