"""The native forward of a model: instructions bound to packed weights, and memory for the rows of a step.

B sequences, R rows of all of them, V vocabulary
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp.host.trees import address
from lp.model.causal import SequenceRows
from lp.model.kv.contiguous import ContiguousCache
from lp.model.kv_cache import KVCache
from lp.model.native.binding import Bound, BoundInstruction
from lp.model.native.memory import Output, RowMemory
from lp.model.program.steps import Program, Value
from lp.tree import TokenTree

# MOST_QUERIES and KEYS in kernels/attention_task.h.
MOST_QUERIES, KEYS = 48, 64


class _Step(ctypes.Structure):
    """Step in kernels/step.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("num_sequences", "num_layers")),
        *((name, ctypes.c_void_p) for name in ("sequences", "stores", "tokens", "parents", "depths")),
        *((name, ctypes.c_void_p) for name in ("row_tokens", "positions")),
        *((name, ctypes.c_long) for name in ("num_rows", "num_answered", "num_runs")),
        *((name, ctypes.c_void_p) for name in ("rows", "runs", "seen")),
    ]


class NativeForward:
    """A FastForward for the CPU, which runs all rows of a step at once. Each row's logits are the same to the last bit
    whatever rows and sequences are beside it and however much of its path is cached.
    """

    begins_caches = True
    owns_weights = True
    is_invariant = True

    def __init__(
        self,
        program: Program,
        instructions: list[BoundInstruction],
        memory: RowMemory,
        library: ctypes.CDLL,
        cache_shapes: list[tuple[int, int]],
        dtype: torch.dtype,
    ):
        """cache_shapes: heads and head dimension of each layer's keys and values. dtype: the cache's."""
        self._tokens, self._positions, self._logits = program.tokens, program.positions, program.logits
        self._instructions = instructions
        self._memory = memory
        self._library = library
        self._cache_shapes = cache_shapes
        self._dtype = dtype
        self._table = np.zeros((len(instructions), 5), np.int64)
        self._arguments = np.zeros(sum(len(one.arguments) for one in instructions), np.int64)
        self._logits_at: list[int] = []
        self._scores = torch.empty(0)
        self._output = Output()
        self._fill_table()

    @property
    def num_layers(self) -> int:
        return len(self._cache_shapes)

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward."""
        return self._forward(given, None)

    def times(self, tree: TokenTree, cache: KVCache, num_logits: int) -> list[tuple[int, float]]:
        """Runs a step; returns kind (see source.py) and seconds of each instruction, the wait for other threads
        included.
        """
        times = np.zeros(len(self._instructions) + 1)
        self._forward([SequenceRows(tree, cache, num_logits)], times)
        return list(zip([one.kind for one in self._instructions], np.diff(times).tolist(), strict=True))

    def _forward(self, given: Sequence[SequenceRows], times: np.ndarray | None) -> Tensor:
        caches = [self._written(rows.cache) for rows in given]
        table = np.array(
            [
                [len(tree), count, cache.length, cache.capacity, 0, 0]
                for (tree, _, count), cache in zip(given, caches, strict=True)
            ]
        )
        num_rows, num_logits, *_ = table.sum(axis=0).tolist()
        longest = int((table[:, 0] + table[:, 2]).max())
        trees = [rows.tree for rows in given]
        inputs = np.concatenate(
            [tree.tokens for tree in trees] + [tree.parents for tree in trees] + [tree.depths for tree in trees],
            dtype=np.int64,
        )
        if num_rows > self._memory.capacity:
            self._reserve(num_rows)
        width = self._logits.width
        logits = self._output.take(num_logits, width)
        self._arguments[self._logits_at] = logits.data_ptr() - (num_rows - num_logits) * width * logits.itemsize
        self._run(table, inputs, np.concatenate([cache.addresses() for cache in caches]), longest, times)
        return logits

    def _written(self, cache: KVCache) -> ContiguousCache:
        """The cache, with memory for every layer."""
        assert isinstance(cache, ContiguousCache), "the native code reads a layer's tokens as one piece of memory"
        if not cache.is_written:
            cache.allocate(self._cache_shapes, self._dtype)
        return cache

    def _run(
        self, table: np.ndarray, inputs: np.ndarray, stores: np.ndarray, longest: int, times: np.ndarray | None
    ) -> None:
        """table: int64 [B, 6], Sequence in kernels/step.h for each. inputs: int64 [3 * R] tokens, parents and depths.
        stores: the addresses of all caches. longest: tokens of the longest sequence.
        """
        num_threads, num_rows = torch.get_num_threads(), len(inputs) // 3
        num_scores = MOST_QUERIES * -(-longest // KEYS) * KEYS
        if len(self._scores) < num_threads * num_scores:
            self._scores = torch.empty(2 * num_threads * num_scores)
        depths = inputs[2 * num_rows :]
        rows, runs = np.empty((num_rows + 1, 2), np.int64), np.empty((2 * len(table), 3), np.int64)
        seen = np.empty(int(depths.sum()) + num_rows, np.int32)
        given = address(inputs)
        step = _Step(
            len(table), self.num_layers, address(table), address(stores),
            given, given + 8 * num_rows, given + 16 * num_rows,
            self._memory.address(self._tokens), self._memory.address(self._positions),
            0, 0, 0, address(rows), address(runs), address(seen),
        )  # fmt: skip
        self._library.forward(
            ctypes.byref(step), ctypes.c_void_p(self._table.ctypes.data), ctypes.c_long(len(self._table)),
            ctypes.c_void_p(self._arguments.ctypes.data), ctypes.c_void_p(self._scores.data_ptr()),
            ctypes.c_long(num_scores), ctypes.c_long(num_threads),
            ctypes.c_void_p(None if times is None else times.ctypes.data),
        )  # fmt: skip

    def _fill_table(self) -> None:
        """Writes Instruction of kernels/run.h for each instruction."""
        first, stage = 0, 0
        for number, one in enumerate(self._instructions):
            self._table[number] = one.kind, one.number, one.is_last, one.stage != stage, first
            stage, first = one.stage, first + len(one.arguments)

    def _reserve(self, num_rows: int) -> None:
        """Makes memory for more rows, and writes all addresses into the arguments."""
        self._memory.reserve(num_rows)
        arguments = [argument for one in self._instructions for argument in one.arguments]
        self._logits_at = [at for at, argument in enumerate(arguments) if argument is self._logits]
        self._arguments[:] = [self._number(argument) for argument in arguments]

    def _number(self, argument: Bound) -> int:
        if isinstance(argument, Value):
            return self._memory.address(argument)
        return argument.data_ptr() if isinstance(argument, Tensor) else argument
