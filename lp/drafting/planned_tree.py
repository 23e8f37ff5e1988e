"""A tree whose rows lie in the library's memory, so that nothing needs to be made of it in Python."""

from __future__ import annotations

import weakref
from array import array
from typing import Any

import numpy as np

from lp.platform.library import Library, address
from lp.tree import TokenTree


class Handle:
    """An object of the library, freed with this one. address: its address."""

    def __init__(self, address: int, free: Any):
        self.address = address
        weakref.finalize(self, free, address)


class PlannedMemory:
    """The memory of the trees that the library plans for one sequence: of the last one and the one before it.

    serial: the number of the last one. rows_at: the address of all rows. kinds: of the last one's rows.
    """

    def __init__(self, library: Library, capacity: int):
        """capacity: most rows of a tree."""
        self._library, self._capacity = library, capacity
        # Tokens, parents, depths and kinds of the rows; see Shared in lp/platform/csrc/given.h.
        self._rows = array("q", bytes(8 * 2 * 4 * capacity))
        self.rows_at = self._rows.buffer_info()[0]
        numbers, size = memoryview(self._rows), 8 * capacity
        self._both_kinds = numbers[3 * capacity : 4 * capacity], numbers[7 * capacity :]
        self.kinds = self._both_kinds[0]
        self.addresses = [(first, first + size, first + 2 * size) for first in (self.rows_at, self.rows_at + 4 * size)]
        self._trees: list[weakref.ref[PlannedTree] | None] = [None, None]
        self.serial = 0
        self._drafts: Handle
        self._inputs, self._inputs_at = np.empty(0, np.int64), 0

    def belongs_to(self, drafts: Handle) -> None:
        """Notes who writes to the memory."""
        self._drafts = drafts

    def make_room(self) -> None:
        """Lets the tree before the last one keep a copy of its rows, if it is still there, as the library writes over
        them when it plans the next one.
        """
        known = self._trees[(self.serial + 1) & 1]
        if known is not None and (before := known()) is not None:
            before.keep_rows()

    def next_tree(self) -> PlannedTree:
        """The tree that the library plans next or has just planned, without its number of rows yet. Room must have been
        made for it.
        """
        self.serial += 1
        self.kinds = self._both_kinds[self.serial & 1]
        return self.last_tree(0)

    def last_tree(self, num_rows: int) -> PlannedTree:
        """The tree planned last, with this number of rows."""
        tree = PlannedTree.__new__(PlannedTree)
        tree.memory, tree.serial, tree.num_rows = self, self.serial, num_rows
        self._trees[self.serial & 1] = weakref.ref(tree)
        return tree

    def copy(self, serial: int, num_rows: int) -> np.ndarray:
        """[3, R] tokens, parents and depths of one of the last two trees."""
        both = np.frombuffer(self._rows, np.int64).reshape(2, 4, self._capacity)
        return both[serial & 1, :3, :num_rows].copy()

    def as_lists(self, serial: int, num_rows: int) -> tuple[list[int], list[int]]:
        """The tokens and the parents of one of the last two trees."""
        first = 4 * self._capacity * (serial & 1)
        second = first + self._capacity
        return self._rows[first : first + num_rows].tolist(), self._rows[second : second + num_rows].tolist()

    def inputs(self, num_rows: int, cached: int) -> np.ndarray:
        """TokenTree.inputs of the tree planned last. They hold until it is called again."""
        size = num_rows * (num_rows + 2)
        if size > len(self._inputs):
            self._inputs = np.empty(2 * size, np.int64)
            self._inputs_at = address(self._inputs)
        self._library.drafts_inputs(self._drafts.address, cached, self._inputs_at)
        return self._inputs[:size].reshape(num_rows, num_rows + 2)


class PlannedTree(TokenTree):
    """A TokenTree that the library has planned last, or before the last one. Its arrays are made when they are asked
    for, or when the library needs its memory.

    memory: where its rows lie; None once it has arrays of its own. serial: its number there.
    """

    memory: PlannedMemory | None = None
    serial: int = 0

    def __getattr__(self, name: str) -> np.ndarray:
        """The arrays, which are not there at first."""
        if name not in ("tokens", "parents", "depths"):
            raise AttributeError(f"a {type(self).__name__} has no {name}")
        self.keep_rows()
        return getattr(self, name)

    def keep_rows(self) -> None:
        """Makes the arrays, so that the library's memory is not needed any more."""
        if self.memory is not None:
            self.tokens, self.parents, self.depths = self.memory.copy(self.serial, self.num_rows)
            self.memory = None

    @property
    def addresses(self) -> tuple[int, int, int]:
        return super().addresses if self.memory is None else self.memory.addresses[self.serial & 1]

    def as_lists(self) -> tuple[list[int], list[int]]:
        return super().as_lists() if self.memory is None else self.memory.as_lists(self.serial, self.num_rows)

    def inputs(self, cached: int) -> np.ndarray:
        memory = self.memory
        is_last = memory is not None and self.serial == memory.serial
        return memory.inputs(self.num_rows, cached) if memory and is_last else super().inputs(cached)
