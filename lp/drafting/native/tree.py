"""A tree whose rows lie in the library's memory, so that nothing needs to be made of it in Python."""

from __future__ import annotations

import sys
from array import array

import numpy as np

from lp.drafting.native.structures import Handle
from lp.host.library import Library
from lp.host.trees import address
from lp.tree import TokenTree

# References to a tree that PlannedMemory alone knows, while it counts them.
ITS_OWN = 3
# Makes an object without calling anything of Python's.
_new = object.__new__


class PlannedMemory:
    """The memory of the trees that the library plans for one sequence: of the last one and the one before it.

    serial: the number of the last one. rows_at: the address of all rows. kinds: of the last one's rows.
    """

    def __init__(self, library: Library, capacity: int):
        """capacity: most rows of a tree."""
        self._library, self._capacity = library, capacity
        # Tokens, parents, depths and kinds of the rows; see Shared in lp/host/source/drafts.h.
        self._rows = array("q", bytes(8 * 2 * 4 * capacity))
        self.rows_at = self._rows.buffer_info()[0]
        numbers, size = memoryview(self._rows), 8 * capacity
        self._both_kinds = numbers[3 * capacity : 4 * capacity], numbers[7 * capacity :]
        self.kinds = self._both_kinds[0]
        self.addresses = [(first, first + size, first + 2 * size) for first in (self.rows_at, self.rows_at + 4 * size)]
        self._trees: list[PlannedTree | None] = [None, None]
        self.serial = 0
        self._drafts: Handle
        self._inputs, self._inputs_at = np.empty(0, np.int64), 0

    def belongs_to(self, drafts: Handle) -> None:
        """Notes who writes to the memory."""
        self._drafts = drafts

    def make_room(self) -> None:
        """Must be called before the library plans a tree, as it writes over the tree before the last one: if somebody
        still has that, it keeps a copy of its rows.
        """
        before = self._trees[(self.serial + 1) & 1]
        if before is not None and sys.getrefcount(before) > ITS_OWN:
            before.settle()

    def coming_tree(self) -> PlannedTree:
        """The tree that the library plans next, without its number of rows yet. Whoever uses it calls `take`."""
        tree = _new(PlannedTree)
        fields = tree.__dict__  # a frozen dataclass sets each field by a call
        serial = self.serial + 1
        fields["_memory"], fields["_serial"], fields["addresses"] = self, serial, self.addresses[serial & 1]
        return tree

    def take(self, tree: PlannedTree) -> None:
        """Notes that the library has planned the coming tree."""
        self.serial = tree._serial
        place = self.serial & 1
        self.kinds, self._trees[place] = self._both_kinds[place], tree

    def next_tree(self) -> PlannedTree:
        """The tree that the library plans next, without its number of rows yet. It must be called before that."""
        self.make_room()
        tree = self.coming_tree()
        self.take(tree)
        return tree

    def again(self, num_rows: int) -> PlannedTree:
        """The tree planned last, after the library has dropped some of its rows."""
        place = self.serial & 1
        tree = self._trees[place] = _new(PlannedTree)
        fields = tree.__dict__
        fields["_memory"], fields["_serial"], fields["addresses"] = self, self.serial, self.addresses[place]
        fields["num_rows"] = num_rows
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
    """

    _memory: PlannedMemory
    _serial: int

    def __len__(self) -> int:
        return self.__dict__["num_rows"]

    def __getattr__(self, name: str) -> np.ndarray:
        """The arrays, which are not there at first."""
        if name not in ("tokens", "parents", "depths"):
            raise AttributeError(f"a {type(self).__name__} has no {name}")
        self.settle()
        return self.__dict__[name]

    def settle(self) -> None:
        """Makes the arrays, so that the library's memory is not needed any more."""
        fields = self.__dict__
        if "tokens" not in fields:
            fields["tokens"], fields["parents"], fields["depths"] = self._memory.copy(self._serial, fields["num_rows"])
            del fields["addresses"]

    def as_lists(self) -> tuple[list[int], list[int]]:
        if "tokens" in self.__dict__:
            return super().as_lists()
        return self._memory.as_lists(self._serial, self.num_rows)

    def inputs(self, cached: int) -> np.ndarray:
        is_last = self._serial == self._memory.serial
        return self._memory.inputs(self.num_rows, cached) if is_last else super().inputs(cached)
