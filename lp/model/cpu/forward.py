"""The native forward of a model: instructions bound to packed weights, and memory for the rows of a step.

B sequences, R rows of all of them, V vocabulary
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache.cache import KVCache, LayerShape
from lp.kv_cache.contiguous import ContiguousCache
from lp.model.cpu.binding import Bound, BoundInstruction
from lp.model.cpu.build import Libraries
from lp.model.cpu.collectives import Collectives
from lp.model.cpu.layout import StepLayout
from lp.model.cpu.memory import Output, RowMemory
from lp.model.cpu.source import ATTENTION, BYTES_SENT, LAYER, RECURRENCE, REDUCE, SCAN, Instruction
from lp.model.cpu.states import NativeStates, StateShape
from lp.model.fast_forward import FastForward, SequenceRows
from lp.model.program.group import RankGroup, all_gather, all_reduce
from lp.model.program.steps import Program, Value
from lp.platform.library import address
from lp.tree import TokenTree

# What uses the room that each thread has, and may come behind an attention in a stage.
IN_ROOM = ATTENTION, RECURRENCE, SCAN
# Of the numbers that come out.
BYTES_OF_A_NUMBER = 4
# Of the function `forward` that source.py writes.
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_long
_ARGUMENTS = [*[_POINTER] * 4, _NUMBER, *[_POINTER] * 3, _NUMBER, _NUMBER, _POINTER]


class NativeForward(FastForward):
    """For the CPU. It runs all rows of a step at once. Each row's logits are the same to the last bit
    whatever other rows and sequences are in the step and however much of its path is cached.
    """

    owns_weights = True
    runs_by_layer = True

    def __init__(
        self,
        program: Program,
        instructions: list[BoundInstruction],
        memory: RowMemory,
        libraries: Libraries,
        cache_shapes: dict[int, LayerShape],
        states: StateShape,
        dtype: torch.dtype,
    ):
        """cache_shapes: of the layers that have keys and values of their own. states: of recurrent layers. dtype: the
        cache's.
        """
        self._tokens, self._positions, self._output_value = program.tokens, program.positions, program.output
        self._incoming, self._gives_logits = program.incoming, program.gives_logits
        self._hidden = program.hidden  # if it is known, its values are there after each step
        self.gives_hidden = self._hidden is not None
        self._instructions = instructions
        self._memory = memory
        self._run_program, self._functions_at = libraries.kernels.forward, libraries.functions_at
        self._products, self._products_at = libraries.products, address(libraries.products)
        self._cache_shapes = cache_shapes
        self._dtype = dtype
        self._run_program.argtypes, self._run_program.restype = _ARGUMENTS, None
        self._attention_room = libraries.kernels.attention_room
        self._attention_room.argtypes, self._attention_room.restype = [_NUMBER], _NUMBER
        self._table = np.zeros((len(instructions), 5), np.int64)
        self._arguments = np.zeros(sum(len(one.arguments) for one in instructions), np.int64)
        self._table_at, self._arguments_at = address(self._table), address(self._arguments)
        self._output_at: list[int] = []
        self._room, self._room_at = np.empty(0, np.float32), 0
        self._room_for_attention, self._longest = 0, 0  # numbers, for sequences of so many tokens
        self._output, self._layout = Output(), StepLayout(len(cache_shapes), len(states.parts))
        self._states = NativeStates(states, libraries.kernels) if states.parts else None
        group = program.group
        self._collectives = Collectives(group, self._collect) if group is not None else None
        # Two numbers have one sum; that of more depends on their order, which other ways of summing choose themselves.
        self.is_invariant = group is None or group.shared_slots is not None or group.num_ranks == 2
        self._fill_table()

    @property
    def cache_shapes(self) -> dict[int, LayerShape]:
        """See FastForward."""
        return self._cache_shapes

    @property
    def num_layers(self) -> int:
        """The number of layers that have keys and values of their own."""
        return len(self._cache_shapes)

    def with_hidden(self, given: Sequence[SequenceRows], incoming: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See FastForward. The hidden states are in the format that the product with the output embedding reads."""
        assert self._hidden is not None
        logits, num_rows = self._step(given, incoming), self._layout.num_rows
        answered = range(num_rows - self._layout.num_answered, num_rows)
        return logits, self._memory.read(self._hidden, answered, self._dtype)

    def run_by_layer(self, rows: SequenceRows, before_attention: Callable[[int], None]) -> None:
        """See FastForward."""
        self._step([rows], before_attention=before_attention)

    def run_stage(self, given: Sequence[SequenceRows], incoming: Tensor | None) -> Tensor:
        """See FastForward."""
        return self._step(given, incoming)

    def times(self, tree: TokenTree, cache: KVCache, num_logits: int) -> list[tuple[int, float]]:
        """Runs a step; returns kind (see source.py) and seconds of each instruction, the wait for other threads
        included.
        """
        times = np.zeros(len(self._instructions) + 1)
        self._step([SequenceRows(tree, cache, num_logits)], times=times)
        return list(zip([one.kind for one in self._instructions], np.diff(times).tolist(), strict=True))

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward."""
        return self._step(given)

    def _step(
        self,
        given: Sequence[SequenceRows],
        incoming: Tensor | None = None,
        times: np.ndarray | None = None,
        before_attention: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Runs a step. incoming: see `run_stage`. times: see `times`. before_attention: see `run_by_layer`."""
        layout = self._layout
        caches: Any = [rows.cache if rows.cache.stores_at else self._written(rows.cache) for rows in given]
        layout.write(given, caches)
        if layout.num_rows > self._memory.capacity:
            self._reserve(layout.num_rows)
        if self._incoming is not None:
            assert incoming is not None, "a stage of a pipeline, but for the first, gets hidden states"
            _numbers(self._memory.address(self._incoming), layout.num_rows, self._incoming.width).copy_(incoming)
        width = self._output_value.width
        num_answered = layout.num_answered if self._gives_logits else layout.num_rows
        output, output_at = self._output.take(num_answered, width)
        first = output_at - (layout.num_rows - num_answered) * width * BYTES_OF_A_NUMBER
        for at in self._output_at:
            self._arguments[at] = first
        if self._states is None:
            self._run(times, before_attention)
        else:
            self._states.begin(given, layout)
            self._run(times, before_attention, self._states.num_floats(given))
            self._states.note(given)
        return torch.from_numpy(output)

    def _written(self, cache: KVCache) -> ContiguousCache:
        """The cache, with memory for every layer whose addresses are known."""
        assert isinstance(cache, ContiguousCache), "the native code reads a layer's tokens as one piece of memory"
        if not cache.is_written:
            cache.begin(self._cache_shapes, torch.empty(0, dtype=self._dtype))
        cache.addresses()
        return cache

    def _run(
        self, times: np.ndarray | None, before_attention: Callable[[int], None] | None, num_floats: int = 0
    ) -> None:
        """Runs the step that was laid out. num_floats: for which a thread needs room, if attention needs no more."""
        num_threads = torch.get_num_threads()
        if self._layout.longest > self._longest:
            self._longest = 2 * self._layout.longest
            self._room_for_attention = self._attention_room(self._longest)
        room = max(self._room_for_attention, num_floats)
        if len(self._room) < num_threads * room:
            self._room = np.empty(num_threads * room, np.float32)
            self._room_at = address(self._room)
        collectives = self._collectives
        if collectives is not None:
            collectives.begin(num_threads)
        for begin, end, layer in [(0, len(self._table), None)] if before_attention is None else self._segments():
            if before_attention is not None and layer is not None:
                before_attention(layer)
            self._run_program(
                self._layout.address, self._functions_at, self._products_at,
                self._table_at + begin * self._table.strides[0], end - begin, self._arguments_at,
                None if collectives is None else collectives.address, self._room_at, room, num_threads,
                None if times is None else address(times),
            )  # fmt: skip
            if collectives is not None:
                collectives.end()

    def _collect(self, group: RankGroup, number: int, first: int, num_rows: int) -> None:
        """Carries out a collective of the program where native code cannot. number: of its instruction."""
        one = self._instructions[number]
        at = self._table[number, -1]
        x, out, width, *sizes = self._arguments[at : at + len(one.arguments)].tolist()
        own = sizes[group.rank]
        sent = _numbers(x + first * own * BYTES_SENT, num_rows, own)
        received = _numbers(out + first * width * BYTES_SENT, num_rows, width)
        if one.number == REDUCE:
            received.copy_(all_reduce(sent.clone(), group))
        else:
            received.copy_(all_gather(sent, tuple(sizes), group))

    def _segments(self) -> Iterator[tuple[int, int, int | None]]:
        """The instructions [begin, end) from one attention to the next, each with the layer whose keys and values its
        first one reads; None for those before the first attention.
        """
        begin, layer, layers = 0, None, list(self._cache_shapes)
        for number, one in enumerate(self._instructions):
            if one.kind == ATTENTION:
                yield begin, number, layer
                place = one.arguments[LAYER]
                assert isinstance(place, int)
                begin, layer = number, layers[place]
        yield begin, len(self._instructions), layer

    def _fill_table(self) -> None:
        """Writes Instruction of kernels/run.h for each instruction."""
        first = 0
        for number, (one, meets) in enumerate(zip(self._instructions, meetings(self._instructions), strict=True)):
            self._table[number] = one.kind, one.number, one.is_last, meets, first
            first += len(one.arguments)

    def _reserve(self, num_rows: int) -> None:
        """Makes memory for more rows, and writes all addresses into the arguments."""
        self._memory.reserve(num_rows)
        arguments = [argument for one in self._instructions for argument in one.arguments]
        self._output_at = [at for at, argument in enumerate(arguments) if argument is self._output_value]
        self._arguments[:] = [self._number(argument) for argument in arguments]
        self._layout.place(self._memory.address(self._tokens), self._memory.address(self._positions))

    def _number(self, argument: Bound) -> int:
        if isinstance(argument, Value):
            return self._memory.address(argument)
        return argument.data_ptr() if isinstance(argument, Tensor) else argument


def meetings(instructions: Sequence[Instruction | BoundInstruction]) -> Iterator[bool]:
    """Whether all threads meet before each instruction: where a stage begins, and before one that uses the room of
    the threads while others may still read there what was found of an attention.
    """
    stage, is_read = 0, False
    for one in instructions:
        meets = one.stage != stage or (is_read and one.kind in IN_ROOM)
        yield meets
        stage, is_read = one.stage, one.kind == ATTENTION or (is_read and not meets)


def _numbers(at: int, num_rows: int, width: int) -> Tensor:
    """Float32 [num_rows, width] at an address."""
    numbers = (ctypes.c_float * (num_rows * width)).from_address(at)
    return torch.frombuffer(numbers, dtype=torch.float32).view(num_rows, width)
