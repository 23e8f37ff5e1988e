"""A program as C++ sources and the table by which it is run.

R rows
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lp.model.cpu.emit import Argument, StageWriter
from lp.model.cpu.quantized import Norms, kernel_format, struct
from lp.model.cpu.states import StateShape, state_shape
from lp.model.program.record import Inexpressible
from lp.model.program.schedule import Stage
from lp.model.program.steps import (
    AllReduce,
    Attention,
    Collective,
    Constant,
    Convolution,
    ExpertProduct,
    Gather,
    Keep,
    Operand,
    Product,
    Program,
    Scan,
    Shared,
    StatePart,
    TopK,
    Value,
    reads,
    weight_key,
    written,
)
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import GROUP, QuantizedWeight, WeightFormat

FUNCTION, PRODUCT, ATTENTION, COLLECTIVE, EXPERTS, TOP_K, QUANTIZED, QUANTIZED_EXPERTS = range(8)
CONVOLUTION, RECURRENCE, SCAN = range(8, 11)
REDUCE, GATHER = range(2)
# The place of the layer among the arguments of an attention.
LAYER = 4
# Bytes of a number that is sent to other ranks.
BYTES_SENT = 4
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True)
class Instruction:
    """One entry of the table that the native code runs.

    kind: FUNCTION or another of those above. number: of the function, the kind of attention or collective, or the
    format of quantised weights. stage: of the schedule. is_last: only rows whose logits are wanted are computed.
    arguments: what the native code is given, in its order.
    """

    kind: int
    number: int
    stage: int
    is_last: bool
    arguments: tuple[Argument | Product | ExpertProduct | Norms | int, ...]


@dataclass(frozen=True)
class Source:
    """functions: C++ of the model's stages. kernels: C++ of what runs them, which models of the same sizes of heads
    share. formats: of quantised weights, each with C++ of its kernels, which all models share. instructions: in the
    order in which they run. shared: values with memory of their own, and the first and last stage that need it. states:
    of recurrent layers.
    """

    functions: str
    kernels: str
    formats: dict[WeightFormat, str]
    instructions: list[Instruction]
    shared: list[tuple[Value, int, int]]
    states: StateShape

    @property
    def fixed(self) -> tuple[object, ...]:
        """What is the same for all steps of a model that has one program."""
        instructions = [
            (one.kind, one.number, one.is_last, [part for part in one.arguments if isinstance(part, int)])
            for one in self.instructions
        ]
        return self.functions, self.kernels, self.formats, instructions


def write(program: Program, stages: list[Stage], dtype: torch.dtype) -> Source:
    """Raises Inexpressible for a model of a format that kernels do not have."""
    if dtype not in FORMATS:
        raise Inexpressible(f"weights of {dtype}")
    lives = _lives(program, stages)
    shared = {key for key, (_, first, last) in lives.items() if first != last}
    functions: dict[str, int] = {}
    attentions: dict[tuple[int, int, bool], int] = {}
    instructions: list[Instruction] = []
    packed = {weight_key(step.weight) for step in program.steps if isinstance(step, Product)}
    formats = _formats(program)
    has_tables = any(isinstance(step, Gather) and isinstance(step.table, QuantizedWeight) for step in program.steps)
    layers, states = program.cached_layers, state_shape(program, dtype)
    last_kept = _last_kept(stages) if program.gives_logits else len(stages)  # hidden states: of all rows
    for number, stage in enumerate(stages):
        is_last = number > last_kept
        if stage.statements:
            function = StageWriter(stage.statements, shared, packed, formats, layers).write()
            at = functions.setdefault(function.body, len(functions))
            instructions.append(Instruction(FUNCTION, at, number, is_last, tuple(function.arguments)))
        for step in stage.shared:
            if isinstance(step, Product):
                assert isinstance(step.x.source, Value)
                arguments = (step.x.source, step.x.start, step.x.source.width, step, step.bias or 0, step.out)
                if isinstance(step.weight, QuantizedWeight):
                    at = list(formats).index(kernel_format(step.weight.format))
                    norms = Norms(step.weight) if step.weight.format.is_split else 0
                    arguments = (*arguments, *step.weight.shape, step.weight.span // GROUP, norms)
                    instructions.append(Instruction(QUANTIZED, at, number, is_last, arguments))
                    continue
                size = step.x.source.width if step.x.source.is_half else step.weight.shape[0]
                instructions.append(Instruction(PRODUCT, 0, number, is_last, (*arguments, size, step.weight.shape[1])))
            elif isinstance(step, StatePart):
                instructions.append(_state_part(step, number, states))
            elif isinstance(step, Collective):
                instructions.append(_collective(step, number, is_last))
            elif isinstance(step, ExpertProduct):
                instructions.append(_experts(step, number, is_last, formats))
            elif isinstance(step, TopK):
                assert isinstance(step.x.source, Value)
                values = step.x.source, step.x.start, step.x.source.width, step.values, step.places
                instructions.append(
                    Instruction(TOP_K, 0, number, is_last, (*values, step.size, step.count, step.num_pieces))
                )
            else:
                assert isinstance(step, Attention), "lookups by kernels of their own are for GPUs"
                at = attentions.setdefault((step.head_dim, step.value_dim, step.values_in_keys), len(attentions))
                instructions.append(_attention(step, at, number, is_last, layers.index(step.layer)))
    head = _head(dtype)
    texts = _functions(head, list(functions), formats, has_tables), _kernels(head, list(attentions))
    of_formats = {format: write_products(format, dtype) for format in formats}
    return Source(*texts, of_formats, instructions, [lives[key] for key in lives if key in shared], states)


def _last_kept(stages: list[Stage]) -> int:
    """The last stage in which keys, values or states are written: behind it, rows whose logits are not wanted need not
    be computed.
    """
    return max(
        number
        for number, stage in enumerate(stages)
        if any(isinstance(one, Keep | StatePart) for one in (*stage.statements, *stage.shared))
    )


def _formats(program: Program) -> dict[WeightFormat, str]:
    """The formats of quantised weights, each with a name."""
    weights = [step.weight for step in program.steps if isinstance(step, Product | ExpertProduct)]
    weights += [step.table for step in program.steps if isinstance(step, Gather)]
    found = dict.fromkeys(kernel_format(one.format) for one in weights if isinstance(one, QuantizedWeight))
    return {format: f"Format{number}" for number, format in enumerate(found)}


def _lives(program: Program, stages: list[Stage]) -> dict[int, tuple[Value, int, int]]:
    """Each value with the first and the last stage that writes or reads it. Inputs and logits live all the time, and
    hidden states that are kept until the end.
    """
    lives: dict[int, tuple[Value, int, int]] = {}
    for value in (*program.inputs, program.output):
        lives[id(value)] = value, -1, len(stages)
    for number, stage in enumerate(stages):
        for step in (*stage.statements, *stage.shared):
            for value in [*(one.source for one in reads(step)), *written(step)]:
                if isinstance(value, Value):
                    _, first, last = lives.get(id(value), (value, number, number))
                    # What is shared by threads is in memory, even if only this stage needs it.
                    lives[id(value)] = value, first, max(last, number + isinstance(step, Shared))
    if program.hidden is not None:
        value = program.hidden.value
        lives[id(value)] = value, lives[id(value)][1], len(stages)
    return lives


def _experts(step: ExpertProduct, stage: int, is_last: bool, formats: dict[WeightFormat, str]) -> Instruction:
    x, experts = step.x, step.experts
    assert isinstance(x.source, Value) and isinstance(experts.source, Value)
    num_experts, num_inputs, num_outputs = step.shape
    is_quantized = isinstance(step.weight, QuantizedExperts)
    if x.source.is_half and not is_quantized:
        num_inputs = x.strides[0] or x.source.width
    read = x.source, x.start, x.source.width, x.strides[0], experts.source, experts.start, experts.source.width
    sizes = num_inputs, num_outputs, step.num_choices, num_experts
    arguments = *read, step, step.bias or 0, step.out, *sizes
    if isinstance(step.weight, QuantizedExperts):
        at = list(formats).index(kernel_format(step.weight.format))
        return Instruction(QUANTIZED_EXPERTS, at, stage, is_last, (*arguments, step.weight.span // GROUP))
    return Instruction(EXPERTS, 0, stage, is_last, arguments)


def _state_part(step: StatePart, stage: int, states: StateShape) -> Instruction:
    number = next(number for number, part in enumerate(states.parts) if part.step is step)
    where = number, states.parts[number].begin, states.parts[number].left_begin
    if isinstance(step, Convolution):
        num_taps, size = step.shape
        given = *_placed(step.x), step.out, step.taps, step.bias or 0
        return Instruction(CONVOLUTION, 0, stage, False, (*given, size, num_taps, *where))
    if isinstance(step, Scan):
        operands = step.queries, step.keys, step.values, step.times
        given = [part for one in operands for part in (*_placed(one), 1)]
        return Instruction(SCAN, 0, stage, False, (*given, step.rates, 0, 0, 0, step.out, 1, 1, *step.shape, *where))
    heads = [part for one in (step.queries, step.keys, step.values) for part in (*_placed(one), one.strides[0])]
    each = [*_placed(step.logs), 1, *((0, 0, 0) if step.rates is None else _placed(step.rates)), 1]
    sizes = step.num_heads, step.num_key_heads, step.key_dim, step.value_dim
    return Instruction(RECURRENCE, 0, stage, False, (*heads, *each, step.out, *sizes, *where))


def _placed(x: Operand) -> tuple[Value | Constant, int, int]:
    """A value, and where an operand begins in its rows, which have so many numbers; none of a constant, which has one
    row for all.
    """
    return x.source, x.start, x.source.width if isinstance(x.source, Value) else 0


def _collective(step: Collective, stage: int, is_last: bool) -> Instruction:
    assert isinstance(step.x.source, Value)
    if isinstance(step, AllReduce):
        number, sizes = REDUCE, (step.out.width,) * step.group.num_ranks
    else:
        number, sizes = GATHER, step.sizes
    shared = step.group.shared_slots
    if shared is not None and max(sizes) * BYTES_SENT > shared.slot_bytes:
        raise Inexpressible(f"a row of {max(sizes)} numbers that is sent to other ranks")
    return Instruction(COLLECTIVE, number, stage, is_last, (step.x.source, step.out, step.out.width, *sizes))


def _attention(step: Attention, kind: int, stage: int, is_last: bool, layer: int) -> Instruction:
    """kind: the number of the kernel. layer: among those that have keys and values of their own."""
    how, heads = step.how, (step.head_stride, step.num_heads, step.num_groups)
    limits = how.sliding_window or 0, how.chunk_size or 0, _bits(how.softcap or 0.0)
    arguments = *_placed(step.query), step.out, layer, step.sinks or 0, *heads, _bits(how.scale), *limits
    return Instruction(ATTENTION, kind, stage, is_last, arguments)


def _bits(value: float) -> int:
    """A float32 among arguments that are integers."""
    return int(np.float32(value).view(np.int32))


def _functions(head: str, functions: list[str], formats: dict[WeightFormat, str], has_tables: bool) -> str:
    """The functions of stages, and an array of them. has_tables: whether they look up rows of quantised weights."""
    parts = [head, '#include "step.h"', '#include "linear.h"', ""]
    parts += _structs(formats) if has_tables else []
    for number, body in enumerate(functions):
        parts += [
            f"static void function_{number}(const Step& step, const long* a, long first, long last) {{",
            "    for (long r = first; r < last; r++) {", body, "    }", "}", "",
        ]  # fmt: skip
    names = ", ".join(f"function_{number}" for number in range(len(functions)))
    return "\n".join([
        *parts,
        'extern "C" {',
        f"void (*functions[])(const Step&, const long*, long, long) = {{{names or 'nullptr'}}};",
        "}", "",
    ])  # fmt: skip


def _kernels(head: str, attentions: list[tuple[int, int, bool]]) -> str:
    """What runs a program, with the kernels for these kinds of attention."""
    sizes = [f"<{key}, {value}, {str(in_keys).lower()}>" for key, value, in_keys in attentions]
    kinds = ", ".join(f"attend{one}" for one in sizes)
    rooms = "".join(f", LayerAttention{one}::room_for(longest)" for one in sizes)
    return "\n".join([
        head, '#include "run.h"', "",
        f"static const Attention attentions[] = {{{kinds or 'nullptr'}}};",
        "",
        "// Floats of room that a thread needs for attention if the longest sequence has so many tokens.",
        f'extern "C" long attention_room(long longest) {{ return std::max({{0L{rooms}}}); }}',
        "",
        'extern "C" void forward(Step* step, const Function* functions, const QuantizedKernels* quantized,',
        "                        const Instruction* program, long num_instructions, const long* arguments,",
        "                        Group* group, float* room, long room_size, long num_threads, double* times) {",
        "    lay_out(*step);",
        "    run_program(*step, {functions, attentions, quantized}, program, num_instructions, arguments, group, room,",
        "                room_size, num_threads, times);",
        "}", "",
    ])  # fmt: skip


def write_products(format: WeightFormat, dtype: torch.dtype) -> str:
    """C++ of the kernels for a format of quantised weights, in a model of a dtype."""
    return "\n".join([
        _head(dtype), '#include "screened.h"', "", *struct("Format", format), "",
        'extern "C" {', *(_SCREENED if format.is_split else []),
        "void product(const long* a, long first, long last, long thread, long num_threads) {",
        "    multiply_quantized<Format>(a, first, last, thread, num_threads);",
        "}", "",
        "void expert_product(const long* a, long first, long last, long thread, long num_threads) {",
        "    multiply_quantized_experts<Format>(a, first, last, thread, num_threads);",
        "}", "",
        "void pack(const uint8_t* codes, long first, long last, long num_inputs, long num_outputs, uint8_t* weight) {",
        "    pack_codes<Format>(codes, first, last, num_inputs, num_outputs, weight);",
        "}",
        "}", "",
    ])  # fmt: skip


def _head(dtype: torch.dtype) -> str:
    return f"#define WEIGHT_FORMAT {FORMATS[dtype]}"


def _structs(formats: dict[WeightFormat, str]) -> list[str]:
    includes = ['#include "quantized.h"', ""] if formats else []
    return includes + [line for format, name in formats.items() for line in (*struct(name, format), "")]


# Of a format whose codes are split.
_SCREENED = [
    "void screened_product(const long* a, long first, long last, long thread, long num_threads, float* limits,",
    "                      long stride, void (*meet)(void*), void* meeting) {",
    "    multiply_screened<Format>(a, first, last, thread, num_threads, limits, stride, meet, meeting);",
    "}",
    "",
    "void norms(const uint8_t* packed, long num_inputs, long num_outputs, long span_groups, uint8_t* out) {",
    "    find_norms<Format>({packed, num_inputs, num_outputs, span_groups}, out);",
    "}",
    "",
]
