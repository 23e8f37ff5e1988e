"""Finds the value or constant that a recorded tensor is a view of, and reads it as a statement's operand.

R rows of the recording
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lp.model.program.layout import Memory, View
from lp.model.program.record import Inexpressible, memory
from lp.model.program.steps import Constant, Operand, Value

# Booleans are 0 and 1.
NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)


class Operands:
    """All values of a recording, by their memory. Memory that no value is in holds constants."""

    def __init__(self, num_rows: int):
        """num_rows: R."""
        self._num_rows = num_rows
        self._values: dict[int, tuple[Value, Memory]] = {}
        self._constants: dict[tuple[Any, ...], Constant] = {}

    def is_value(self, tensor: Tensor) -> bool:
        return memory(tensor) in self._values

    def fresh(self, tensor: Tensor, row: int) -> Value:
        """Makes the value of a tensor with memory of its own. row: the dimension that counts rows."""
        if tensor.dtype not in NUMBERS:
            raise Inexpressible(f"numbers of {tensor.dtype}")
        where = Memory(tensor, row, self._num_rows)
        value = Value(where.width, is_integer=tensor.dtype == torch.int64)
        self._values[memory(tensor)] = value, where
        return value

    def renew(self, tensor: Tensor) -> tuple[Value, Value]:
        """Puts a new value of the same kind in the place of the one whose memory a tensor views. Returns both."""
        before, where = self._values[memory(tensor)]
        after = Value(before.width, before.is_integer)
        self._values[memory(tensor)] = after, where
        return before, after

    def find(self, tensor: Tensor) -> tuple[Value, View]:
        """The value whose memory a tensor views."""
        value, where = self._values[memory(tensor)]
        return value, where.view(tensor)

    def constant(self, tensor: Tensor, is_table: bool = False) -> Constant:
        """The same Constant for every equal view of the same memory."""
        key = memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), is_table
        return self._constants.setdefault(key, Constant(tensor, is_table))

    def row_of(self, tensors: list[Tensor], num_dims: int) -> int:
        """The dimension that counts rows in the outcome of an elementwise operation with `num_dims` dimensions."""
        rows = set()
        for tensor in tensors:
            if self.is_value(tensor):
                row = self.find(tensor)[1].row
                assert row is not None
                rows.add(row + num_dims - tensor.dim())
        if len(rows) != 1:
            raise Inexpressible("an operation that combines different rows")
        return rows.pop()

    def operand(self, tensor: Tensor, shape: Sequence[int], row: int) -> Operand:
        """A tensor as an input of a statement over `shape`, to which it is broadcast."""
        missing = len(shape) - tensor.dim()
        if self.is_value(tensor):
            source, view = self.find(tensor)
            sizes, strides, start = view.sizes, view.strides, view.start
            if view.row is not None and view.row + missing != row:
                raise Inexpressible("an operation that combines different rows")
        else:
            kept = tensor
            for dim, stride in enumerate(tensor.stride()):  # what was only expanded is read from one place
                kept = kept if stride else kept.narrow(dim, 0, 1)
            if row - missing >= 0 and kept.shape[row - missing] != 1:
                raise Inexpressible("a constant that is different for every row")
            source, sizes, start = self.constant(kept), tuple(kept.shape), 0
            strides = kept.contiguous().stride()
        aligned = [0] * missing + [stride if size > 1 else 0 for size, stride in zip(sizes, strides, strict=True)]
        return Operand(source, start, squeezed(shape, row, aligned))

    def part(self, tensor: Tensor, row: int) -> Operand:
        """A part of a value as a statement's outcome."""
        value, view = self.find(tensor)
        return Operand(value, view.start, squeezed(tensor.shape, row, view.strides))

    def out(self, tensor: Tensor, row: int) -> Operand:
        """The whole of a fresh value as a statement's outcome."""
        value = self.fresh(tensor, row)
        view = self.find(tensor)[1]
        return Operand(value, 0, squeezed(tensor.shape, row, view.strides))


def squeezed(shape: Sequence[int], row: int, figures: Any) -> tuple[int, ...]:
    """Leaves out the figures of the row's dimension and of dimensions of size 1."""
    return tuple(
        int(figure) for dim, (size, figure) in enumerate(zip(shape, figures, strict=True)) if size > 1 and dim != row
    )
