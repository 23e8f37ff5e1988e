"""Where a tensor's numbers lie, row by row.

A value is an array of numbers for each row of a step. A recorded tensor is a view of one: one of its dimensions counts
rows, it begins somewhere in a row's array, and each other dimension has a stride. The view is found from the addresses
of the tensor's elements, so it does not matter which operations made it.

    R rows of the recording
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lp.model.program.record import Inexpressible


@dataclass(frozen=True)
class View:
    """A tensor as a view of a value's rows.

    row: index of the dimension that counts rows; None if there is none. sizes, strides: of all dimensions, in numbers;
    1 and 0 for the row's. start: offset in the row's array.
    """

    row: int | None
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the view has the row's numbers in their order, from the first on."""
        return self.start == 0 and self.strides == dense_strides(self.sizes)


class Memory:
    """The numbers of a fresh tensor: the row that each belongs to, and its place in the row's array."""

    def __init__(self, fresh: Tensor, row: int, num_rows: int):
        """row: the dimension of `fresh` that counts rows. Places go in the order of the other dimensions."""
        self.num_rows = num_rows
        addresses = _addresses(fresh).ravel()
        order = np.moveaxis(np.arange(fresh.numel()).reshape(fresh.shape), row, 0)
        rank = np.empty(fresh.numel(), np.int64)
        rank[order.ravel()] = np.arange(fresh.numel())
        self.width = fresh.numel() // num_rows
        self._origin = int(addresses.min())
        self._places = np.full(int(addresses.max()) - self._origin + 1, -1, np.int64)
        self._places[addresses - self._origin] = rank
        self._views: dict[tuple[object, ...], View] = {}

    def view(self, tensor: Tensor) -> View:
        """Raises Inexpressible for a tensor in which rows and numbers are mixed."""
        key = tensor.shape, tensor.stride(), tensor.storage_offset()
        if key not in self._views:
            self._views[key] = self._find(tensor)
        return self._views[key]

    def _find(self, tensor: Tensor) -> View:
        ranks = self._places[_addresses(tensor) - self._origin]
        rows, places = ranks // self.width, ranks % self.width
        for dim in (dim for dim, size in enumerate(tensor.shape) if size == self.num_rows):
            if (rows == _along(dim, tensor.dim(), self.num_rows)).all():
                return _affine(np.take(places, [0], axis=dim), places, dim)
        raise Inexpressible(f"a tensor of shape {list(tensor.shape)} mixes rows")


def _affine(first: np.ndarray, places: np.ndarray, row: int) -> View:
    start = int(first.flat[0])
    strides = []
    for dim, size in enumerate(first.shape):
        strides.append(int(np.take(first, [1], axis=dim).flat[0]) - start if size > 1 else 0)
    expected = start + sum(
        stride * _along(dim, first.ndim, size)
        for dim, (stride, size) in enumerate(zip(strides, first.shape, strict=True))
    )
    if not (places == expected).all():
        raise Inexpressible(f"a tensor of shape {list(places.shape)} has no even strides")
    return View(row, first.shape, tuple(strides), start)


def _along(dim: int, num_dims: int, size: int) -> np.ndarray:
    """0, 1, ... `size` - 1 along a dimension."""
    return np.arange(size).reshape([size if other == dim else 1 for other in range(num_dims)])


def _addresses(tensor: Tensor) -> np.ndarray:
    """The offset of each element in the tensor's memory."""
    offset = np.full(tensor.shape, tensor.storage_offset(), np.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        offset += stride * _along(dim, tensor.dim(), size)
    return offset


def dense_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array without gaps; 0 for dimensions of size 1."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step if size > 1 else 0)
        step *= size
    return tuple(reversed(strides))
