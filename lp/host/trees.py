"""What follows from the parents of a tree's rows, computed by the library; lp/tree.py has the same in Python.

R rows of a tree
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from lp.host.library import Library

# numpy's arrays begin like this (PyArrayObject in its C interface): what every object has, then their data's address.
_BEFORE_DATA = object.__basicsize__
_Address = ctypes.c_void_p


def address(values: np.ndarray) -> int:
    """The address of an array's first number."""
    return _Address.from_address(id(values) + _BEFORE_DATA).value or 0


def _asked_address(values: np.ndarray) -> int:
    return values.__array_interface__["data"][0]


if address(_probe := np.zeros(1)) != _asked_address(_probe):  # another Python, or another numpy
    address = _asked_address


def integers(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """The values as int64 numbers side by side, which is how the library reads them."""
    return np.ascontiguousarray(values, dtype=np.int64)


def visibility(library: Library, parents: np.ndarray) -> np.ndarray:
    """[R, R] bool, the ancestor closure."""
    parents, num_rows = integers(parents), len(parents)
    seen = np.empty((num_rows, num_rows), dtype=bool)
    library.tree_visibility(address(parents), num_rows, address(seen))
    return seen


def verify(
    library: Library, tokens: np.ndarray, parents: np.ndarray, targets: np.ndarray, num_verified: int
) -> list[list[int]]:
    """The rows of each level below the root that hold the targets of the rows above them."""
    tokens, parents, targets, num_rows = integers(tokens), integers(parents), integers(targets), len(tokens)
    found = np.empty((2, num_rows), np.int64)
    at = address(found)
    count = library.tree_verify(
        address(tokens), address(parents), num_rows, address(targets), num_verified, at, at + 8 * num_rows
    )
    return as_levels(found, count)


def as_levels(found: np.ndarray, count: int) -> list[list[int]]:
    """Lists of the rows of each level. found: [2, R] all of them, and the number of rows of each level."""
    sizes = found[1, :count].tolist()
    rows = found[0, : sum(sizes)].tolist()
    if len(rows) == count:
        return [[row] for row in rows]
    levels, first = [], 0
    for size in sizes:
        levels.append(rows[first : first + size])
        first += size
    return levels


def follow(library: Library, tokens: np.ndarray, parents: np.ndarray, wanted: Sequence[int]) -> list[int]:
    """The path from the first row to the deepest row that agrees with the wanted tokens."""
    tokens, parents, wanted_tokens = integers(tokens), integers(parents), integers(wanted)
    path = np.empty(len(wanted_tokens), np.int64)
    count = library.tree_follow(
        address(tokens), address(parents), len(tokens), address(wanted_tokens), len(wanted_tokens), address(path)
    )
    return path[:count].tolist()
