"""Memory for the values of a step's rows. Values that are not needed at the same time share memory."""

from __future__ import annotations

import ctypes
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor

from lp.model.program.steps import Span, Value
from lp.platform.library import address

# Memory is made for multiples of this many rows.
ROWS = 64
# Rows behind the last one that the native code may read: TILE_ROWS in kernels/matrix_unit.h.
BEHIND = 16
LINE = 64
# Memory of earlier logits is used again if it is at most so many times what is needed.
MOST_SPARE = 64


class RowMemory:
    """Gives each value the address of its first row's numbers."""

    def __init__(self, values: list[tuple[Value, int, int]]):
        """values: each with the first and the last stage that needs it."""
        self.capacity = 0
        self._values = sorted(values, key=lambda one: one[1])
        self._memory: list[Tensor] = []
        self._addresses: dict[int, int] = {}

    def reserve(self, num_rows: int) -> None:
        """Allocates memory for `num_rows` rows. All addresses change."""
        self.capacity = -(-num_rows // ROWS) * ROWS
        self._memory.clear()
        slots: list[tuple[int, int, int]] = []  # bytes, address, last stage that needs it
        for value, first, last in self._values:
            size = value.width * _bytes_of(value) * (self.capacity + BEHIND)
            slot = min((slot for slot in slots if slot[0] >= size and slot[2] < first), default=None)
            if slot is None:
                slot = size, self._allocate(size), last
            else:
                slots.remove(slot)
            slots.append((slot[0], slot[1], last))
            self._addresses[id(value)] = slot[1]

    def _allocate(self, size: int) -> int:
        self._memory.append(torch.zeros(size + LINE, dtype=torch.uint8))
        return -(-self._memory[-1].data_ptr() // LINE) * LINE

    def address(self, value: Value) -> int:
        return self._addresses[id(value)]

    def read(self, span: Span, rows: range, half: torch.dtype) -> Tensor:
        """A copy of a span's numbers in some rows, [rows, size]. half: the model's 16-bit format."""
        value, row_bytes = span.value, span.value.width * _bytes_of(span.value)
        numbers = (ctypes.c_byte * (len(rows) * row_bytes)).from_address(self.address(value) + rows.start * row_bytes)
        every = torch.frombuffer(numbers, dtype=half if value.is_half else torch.float32).view(len(rows), value.width)
        return every[:, span.start : span.start + span.size].clone()


class Output:
    """Memory for a step's logits, used again once they have been freed: new memory costs as much time as some rows."""

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.float32)
        self._at = address(self._numbers)
        self._last: ReferenceType[np.ndarray] | None = None  # what was returned last; tensors of it keep it alive

    def take(self, num_rows: int, width: int) -> tuple[np.ndarray, int]:
        """Float32 [num_rows, width] with any numbers, and its address."""
        size = num_rows * width
        is_used = self._last is not None and self._last() is not None
        if is_used or not size <= len(self._numbers) <= MOST_SPARE * size:
            self._numbers = np.empty(size, np.float32)
            self._at = address(self._numbers)
        numbers = self._numbers[:size].reshape(num_rows, width)
        self._last = ref(numbers)
        return numbers, self._at


def _bytes_of(value: Value) -> int:
    """Bytes of one number."""
    return 8 if value.is_integer else 2 if value.is_half else 4
