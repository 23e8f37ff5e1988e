"""Memory for what the native forward reads of a step's rows and sequences, which each step writes anew.

B sequences, R rows of all of them
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from lp.kv_cache.contiguous import ContiguousCache
from lp.model.fast_forward import SequenceRows
from lp.platform.library import address, library

# Memory is made for multiples of this many sequences, of this many rows, and for twice the rows that a step's rows see.
SEQUENCES, ROWS = 16, 64


class Step(ctypes.Structure):
    """Step in kernels/step.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("num_sequences", "num_layers")),
        *((name, ctypes.c_void_p) for name in ("sequences", "stores", "tokens", "parents", "depths")),
        *((name, ctypes.c_void_p) for name in ("row_tokens", "positions")),
        *((name, ctypes.c_long) for name in ("num_rows", "num_answered", "num_runs")),
        *((name, ctypes.c_void_p) for name in ("rows", "runs", "seen")),
        ("num_parts", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("states", "of_states", "stops", "visits")),
        ("only_best", ctypes.c_long),
    ]


class StepLayout:
    """What is written for one step. address: of its Step. num_rows, num_answered: R, and how many of them are answered.
    longest: tokens of the longest sequence.
    """

    def __init__(self, num_layers: int, num_parts: int = 0):
        """num_layers: that have keys and values of their own. num_parts: of the states of recurrent layers."""
        self._step = Step(num_layers=num_layers, num_parts=num_parts)
        self.address = ctypes.addressof(self._step)
        self.num_rows = self.num_answered = self.longest = 0
        self._num_stores = 2 * num_layers
        self._most_sequences = self._most_rows = self._most_seen = 0
        self._numbers = self._stores = self._runs = self._inputs = self._rows = self._seen = np.empty(0, np.int64)
        self._states = self._of_states = self._stops = self._visits = np.empty(0, np.int64)
        self._inputs_at = 0

    def write(self, given: Sequence[SequenceRows], caches: Sequence[ContiguousCache]) -> None:
        """Writes the rows of some sequences. caches: of these, with memory for every layer."""
        num_rows = num_answered = longest = 0
        only_best = True
        for (tree, _, count, is_best_alone), cache in zip(given, caches, strict=True):
            num_rows += tree.num_rows
            num_answered += count
            only_best = only_best and (is_best_alone or not count)
            longest = max(longest, cache.length + tree.num_rows)
        self.num_rows, self.num_answered, self.longest = num_rows, num_answered, longest
        if len(given) > self._most_sequences:
            self._reserve_sequences(len(given))
        if num_rows > self._most_rows:
            self._reserve_rows(num_rows)
        step, at = self._step, self._inputs_at
        step.num_sequences, step.only_best = len(given), only_best
        step.tokens, step.parents, step.depths = at, at + 8 * num_rows, at + 16 * num_rows
        num_seen = self._gathered_by_library(given, caches) or self._gather(given, caches)
        if num_seen > self._most_seen:
            self._seen, self._most_seen = np.empty(2 * num_seen, np.int32), 2 * num_seen
            step.seen = address(self._seen)

    def place(self, row_tokens: int, positions: int) -> None:
        """Notes the addresses of the program's inputs, which the native code writes."""
        self._step.row_tokens, self._step.positions = row_tokens, positions

    def write_states(self, before: list[int], of_states: list[int], stops: list[int]) -> None:
        """Writes what the rows are given of states: addresses of their parts before the step, the numbers in
        SequenceStates, and those in Stop, of all sequences.
        """
        self._states, self._of_states = np.array(before, np.int64), np.array(of_states, np.int64)
        self._stops = np.array(stops, np.int64)
        step = self._step
        step.states, step.of_states, step.stops = address(self._states), address(self._of_states), address(self._stops)

    def _gathered_by_library(self, given: Sequence[SequenceRows], caches: Sequence[ContiguousCache]) -> int:
        """Has the library write numbers, inputs and stores. Returns how many rows all rows see; 0 without a library."""
        if (native := library()) is None:
            return 0
        table = list[int]()  # StoredRows in lp/platform/csrc/step.h
        for (tree, _, count, _), cache in zip(given, caches, strict=True):
            table += *tree.addresses, tree.num_rows, cache.length, count, cache.capacity, cache.stores_at
        step = self._step
        return native.step_gather(
            table, len(given), self.num_rows, self._num_stores, step.sequences, self._inputs_at, step.stores
        )

    def _gather(self, given: Sequence[SequenceRows], caches: Sequence[ContiguousCache]) -> int:
        """What the library does, in Python."""
        inputs = self._inputs[: 3 * self.num_rows].reshape(3, -1)
        for number, name in enumerate(("tokens", "parents", "depths")):
            np.concatenate([getattr(rows.tree, name) for rows in given], out=inputs[number], dtype=None)
        for number, (rows, cache) in enumerate(zip(given, caches, strict=True)):
            self._numbers[number] = len(rows.tree), rows.num_logits, cache.length, cache.capacity, 0, 0
            self._stores[number] = cache.addresses()
        return int(inputs[2].sum()) + self.num_rows

    def _reserve_sequences(self, count: int) -> None:
        count = self._most_sequences = -(-count // SEQUENCES) * SEQUENCES
        self._numbers, self._stores = np.empty((count, 6), np.int64), np.empty((count, self._num_stores), np.int64)
        self._runs = np.empty((2 * count, 3), np.int64)
        self._step.sequences, self._step.stores = address(self._numbers), address(self._stores)
        self._step.runs = address(self._runs)

    def _reserve_rows(self, count: int) -> None:
        count = self._most_rows = -(-count // ROWS) * ROWS
        self._inputs, self._rows = np.empty(3 * count, np.int64), np.empty((count + 1, 2), np.int64)
        self._inputs_at, self._step.rows = address(self._inputs), address(self._rows)
        if self._step.num_parts:
            self._visits = np.empty((count, 3), np.int64)
            self._step.visits = address(self._visits)
