"""The library of what the host does between two steps: growing trees, learning from answers, walking down trees, and
exchanging answers with other ranks of the host.

It is compiled on first use. Where that cannot be done, Python drafts less (lp/drafting/simple.py), and does the rest of
the library's work, with the same results.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace

import numpy as np

from lp.platform import disk_cache, host
from lp.platform.build import CannotBuild, NoCompiler, build
from lp.platform.build import load as load_library

log = logging.getLogger("lookahead")


class Library(SimpleNamespace):
    """The functions of the library, which are at the end of csrc/host.cpp. Addresses are numbers."""


_is_off = False


def library() -> Library | None:
    """The library, which the first call compiles or finds on disk; None where it cannot be had."""
    return None if _is_off else _load()


def require_on_all(least: Callable[[int], int]) -> None:
    """Turns the library off unless all ranks have it, as it makes other drafts than Python does.

    least: finds the least of the numbers that the ranks give.
    """
    global _is_off
    has_it = library() is not None
    if not least(int(has_it)) and has_it:
        log.warning("%s: not every rank has a C++ compiler", _SLOWER)
        _is_off = True


@contextmanager
def python_alone() -> Iterator[None]:
    """Lets the Python code run instead of the library; for comparisons."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


_SLOWER = "drafts are made by Python code, which is slower and has fewer sources of them"


@cache
def _load() -> Library | None:
    folder = disk_cache.folder("compiled")
    if folder is None:
        return None
    try:
        (built,) = build([host.source()], folder, "once for this machine")
        found = load_library(built, ctypes.PyDLL)
    except NoCompiler as error:  # one line, for all that is not compiled
        log.warning("%s, and no forward is compiled: %s", _SLOWER, error)
        return None
    except CannotBuild as error:
        log.warning("%s: %s", _SLOWER, error)
        return None
    found.host_functions.argtypes, found.host_functions.restype = [], ctypes.py_object
    functions = Library(**found.host_functions())
    probe = np.zeros(1)
    if functions.array_address(probe) != probe.__array_interface__["data"][0]:
        log.warning("%s: this Python or numpy lays out arrays differently", _SLOWER)
        return None
    return functions


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
