"""A tree whose rows the library has at hand, so that what its forward needs takes one call."""

from __future__ import annotations

import ctypes

import numpy as np

from lp.drafting.native.structures import Handle
from lp.host.trees import address
from lp.tree import TokenTree


class PlannedMemory:
    """What the library makes of the tree that it has planned last.

    serial: the number of that tree. Each new plan writes over what was made of the one before.
    """

    def __init__(self, library: ctypes.PyDLL, drafts: Handle, rows: np.ndarray):
        """rows: the memory of the tree's rows, which must not go while a tree may be asked for."""
        self.serial = 0
        self._library, self._kept, self._drafts = library, (drafts, rows), drafts.address
        self._inputs, self._inputs_at = np.empty(0, np.int64), 0

    def inputs(self, num_rows: int, cached: int) -> np.ndarray:
        """See TokenTree.inputs."""
        size = num_rows * (num_rows + 2)
        if size > len(self._inputs):
            self._inputs = np.empty(2 * size, np.int64)
            self._inputs_at = address(self._inputs)
        self._library.drafts_inputs(self._drafts, cached, self._inputs_at)
        return self._inputs[:size].reshape(num_rows, num_rows + 2)


class PlannedTree(TokenTree):
    """A TokenTree that the library has planned. What is made of it holds until the next one is planned."""

    _memory: PlannedMemory
    _serial: int

    def __init__(self, tokens: np.ndarray, parents: np.ndarray, depths: np.ndarray, memory: PlannedMemory):
        fields = self.__dict__  # a frozen dataclass sets each field by a call
        fields["tokens"], fields["parents"], fields["depths"], fields["greedy"] = tokens, parents, depths, None
        fields["_memory"], fields["_serial"] = memory, memory.serial

    @property
    def _is_at_hand(self) -> bool:
        return self._serial == self._memory.serial

    def inputs(self, cached: int) -> np.ndarray:
        return self._memory.inputs(len(self.tokens), cached) if self._is_at_hand else super().inputs(cached)
