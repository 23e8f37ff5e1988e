"""Memory for the states of recurrent layers, as the native forward reads and writes them.

A step gets the states of its sequences where these lie, and writes those after some of its first rows to memory of its
own, all layers' in one piece. The rows behind them leave what advances a state by any path of theirs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lp.kv_cache.recurrent import State
from lp.model.cpu.layout import StepLayout
from lp.model.fast_forward import SequenceRows
from lp.model.program.steps import Convolution, Program, Scan, StatePart

# Columns of a matrix that a thread advances at a time: MATRIX_COLUMNS in kernels/recurrent.h.
MATRIX_COLUMNS = 32
# Of the function `replay_rows` that source.py writes.
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_long
# Each part begins at a multiple of this many bytes, which is a cache line's size.
ALIGNMENT = 64


@dataclass(frozen=True)
class Part:
    """A part of a layer's state, and where it lies.

    shape, dtype: of its tensor. begin: in a state, in bytes. left_begin, num_left: where it lies in what one row
    leaves, in bytes, and how many numbers of its dtype it has there.
    """

    step: StatePart
    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: int
    left_begin: int
    num_left: int

    def view(self, memory: Tensor) -> Tensor:
        """This part of a state."""
        strides = [prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return memory.view(self.dtype).as_strided(self.shape, strides, self.begin // self.dtype.itemsize)


@dataclass(frozen=True)
class StateShape:
    """All parts of the states of a program's recurrent layers. num_bytes, left_bytes: of a state, and of what one row
    leaves.
    """

    parts: list[Part]
    num_bytes: int
    left_bytes: int


def state_shape(program: Program, dtype: torch.dtype) -> StateShape:
    """dtype: of the model."""
    parts, begin, left_begin = list[Part](), 0, 0
    for step in program.state_parts:
        if isinstance(step, Convolution):
            num_taps, size = step.shape
            shape, own, num_left = (num_taps - 1, size), dtype, size
        elif isinstance(step, Scan):
            shape, own, num_left = step.shape, torch.float32, step.shape[0] + 2 * step.shape[1]
        else:
            shape, own = (step.num_heads, step.key_dim, step.value_dim), torch.float32
            num_left = step.num_key_heads * step.key_dim + step.num_heads * (step.value_dim + 1)
        parts.append(Part(step, shape, own, begin, left_begin, num_left))
        begin += _aligned(prod(shape) * own.itemsize)
        left_begin += _aligned(num_left * own.itemsize)
    return StateShape(parts, begin, left_begin)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class NativeStates:
    """Gives a step the states of its sequences, and notes in these what the step leaves."""

    def __init__(self, shape: StateShape, library: ctypes.CDLL):
        self._shape, self._library = shape, library
        self._layers: dict[int, list[Part]] = {}
        for part in shape.parts:
            self._layers.setdefault(part.step.layer, []).append(part)
        self._first = torch.zeros(shape.num_bytes, dtype=torch.uint8)  # before the first token
        matrices = [part for part in shape.parts if not isinstance(part.step, Convolution)]
        self._most_inputs = max((part.shape[-2] for part in matrices), default=0)
        if matrices:
            library.replay_rows.argtypes, library.replay_rows.restype = [_POINTER] * 5 + [_NUMBER] * 6, None
        self._steps: list[_Step] = []

    def num_floats(self, given: Sequence[SequenceRows]) -> int:
        """The numbers for which a thread needs room: as many parts of a matrix as an order of rows needs at a time."""
        return max(len(rows.tree) for rows in given).bit_length() * self._most_inputs * MATRIX_COLUMNS

    def begin(self, given: Sequence[SequenceRows], layout: StepLayout) -> None:
        """Makes memory for what a step leaves, and lays out where all of it lies."""
        self._steps = [self._begin(rows) for rows in given]
        before, of_states, stops = list[int](), list[int](), list[int]()
        for step in self._steps:
            before += [tensor.data_ptr() for state in step.before.values() for tensor in state]
            first = len(stops) // 2
            of_states += first, first + len(step.after), step.num_left, step.left.data_ptr()
            for number, memory in step.after.items():
                stops += number, memory.data_ptr()
        layout.write_states(before, of_states, stops)

    def _begin(self, rows: SequenceRows) -> _Step:
        states, num_cached, num_rows = rows.cache.states, rows.cache.length, len(rows.tree)
        assert states is not None, "the caches of a model with recurrent layers have states"
        num_certain = num_rows - rows.num_logits
        stops = {stop - num_cached for stop in states.stops(num_cached, num_cached + num_certain)}
        stops |= {num_certain} if num_certain else set()
        # One row behind those that are certain is one that will be kept.
        stops |= {num_rows} if rows.num_logits == 1 else set()
        num_left = rows.num_logits if rows.num_logits > 1 else 0
        after = {stop: torch.empty(self._shape.num_bytes, dtype=torch.uint8) for stop in sorted(stops)}
        left = torch.empty(num_left * self._shape.left_bytes, dtype=torch.uint8)
        return _Step(
            {layer: states.state(layer) or _state(parts, self._first) for layer, parts in self._layers.items()},
            after, left, num_certain, num_left, self._library,
        )  # fmt: skip

    def note(self, given: Sequence[SequenceRows]) -> None:
        """Notes what a step has left, once it has been run."""
        for rows, step in zip(given, self._steps, strict=True):
            states = rows.cache.states
            assert states is not None, "the caches of a model with recurrent layers have states"
            for layer, parts in self._layers.items():
                passed = {number: _state(parts, memory) for number, memory in step.after.items()}
                states.note(layer, LayerStates({0: step.before[layer], **passed}, parts, step))
        self._steps = []


@dataclass(frozen=True)
class _Step:
    """What one sequence's states are before a step, by layer, and after some first rows, by their number. left: what
    the last `num_left` rows leave, of which `first_left` is the first.
    """

    before: dict[int, State]
    after: dict[int, Tensor]
    left: Tensor
    first_left: int
    num_left: int
    library: ctypes.CDLL

    def left_of(self, part: Part) -> Tensor:
        """[rows, numbers] what rows leave of a part."""
        begin = part.left_begin * self.num_left // part.dtype.itemsize
        return self.left.view(part.dtype)[begin : begin + self.num_left * part.num_left].view(self.num_left, -1)


@dataclass
class LayerStates:
    """What a step leaves of one layer: see StepStates."""

    passed: dict[int, State]
    parts: list[Part]
    step: _Step

    def replay(self, state: State, rows: Sequence[int]) -> State:
        own = [row - self.step.first_left for row in rows]
        return tuple(self._advance(part, before, own) for part, before in zip(self.parts, state, strict=True))

    def _advance(self, part: Part, before: Tensor, rows: list[int]) -> Tensor:
        """rows: places among those that have left something."""
        left, step = self.step.left_of(part), part.step
        if isinstance(step, Convolution):
            return torch.cat([before, left[rows]])[-len(before) :]
        after, rates, sizes = torch.empty_like(before), None, (1, 1, *part.shape)
        if isinstance(step, Scan):
            rates = step.rates.tensor.data_ptr()
        else:
            sizes = step.num_heads, step.num_key_heads, step.key_dim, step.value_dim
        self.step.library.replay_rows(
            before.data_ptr(), after.data_ptr(), left.data_ptr(), (ctypes.c_long * len(rows))(*rows), rates, len(rows),
            *sizes, torch.get_num_threads(),
        )  # fmt: skip
        return after


def _state(parts: list[Part], memory: Tensor) -> State:
    """The state of a layer, of memory that has the states of all layers."""
    return tuple(part.view(memory) for part in parts)
