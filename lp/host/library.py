"""The library of what the host does between two steps: growing trees, learning from answers, walking down trees.

It is compiled on first use. Where that cannot be done, the Python code that it replaces runs, and gives the same.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_double, c_int64, c_void_p, py_object
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lp import cache_files
from lp.host.build import CannotBuild, Source, build
from lp.host.build import load as load_library

log = logging.getLogger("lookahead")

SOURCE = Path(__file__).parent / "source"
# No fused multiply-add, which Python does not have either: trees depend on the last bit of a probability.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
         f"-DOBJECT_SIZE={object.__basicsize__}",
         *(("-Wl,-undefined,dynamic_lookup",) if sys.platform == "darwin" else ()))  # fmt: skip

# What the functions return and take; the others return nothing.
_RESULTS: dict[str, Any] = {
    "tree_verify": c_int64, "tree_follow": c_int64, "step_gather": c_int64, "followers_new": c_void_p,
    "followers_size": c_int64, "answers_new": c_void_p, "answers_size": c_int64, "answers_width": c_int64,
    "fixed_new": c_void_p, "drafts_new": c_void_p, "drafts_figures": c_void_p, "drafts_grow": c_int64,
    "drafts_offer": c_int64, "drafts_keep": c_int64, "drafts_commit": py_object, "array_address": c_void_p,
    "drafts_likeliest": c_int64, "drafts_propose": c_int64,
}  # fmt: skip
_P, _N, _S = c_void_p, c_int64, c_double
_ARGUMENTS: dict[str, list[Any]] = {
    "array_address": [py_object],
    "tree_verify": [_P, _P, _N, _P, _N, _P, _P],
    "tree_follow": [_P, _P, _N, _P, _N, _P],
    "tree_visibility": [_P, _N, _P],
    "budget_share_out": [_P, _P, _N, _P, _P, _S, _P],
    "step_fill": [_P, _P, _N, _N],
    "step_gather": [_P, _N, _N, _N, _P, _P, _P],
    "followers_new": [_P, _N, _N],
    "followers_free": [_P],
    "followers_size": [_P],
    "followers_add_text": [_P, _P, _N, _P, _N],
    "answers_new": [_N],
    "answers_free": [_P],
    "answers_size": [_P, _N],
    "answers_width": [_P, _N],
    "answers_copy": [_P, _N, _P, _P],
    "fixed_new": [_P, _P, _N, _N, _P, _P, _N, _N],
    "fixed_free": [_P],
    "drafts_new": [_P, _P, _P, _P],
    "drafts_free": [_P],
    "drafts_figures": [_P],
    "drafts_move_to": [_P, _N, _P, _N],
    "drafts_learn_text": [_P, _P, _N],
    "drafts_learn_ngrams": [_P, _P, _N, _N],
    "drafts_watch": [_P],
    "drafts_grow": [_P, _N, _N, _N, _S, _S],
    "drafts_offer": [_P, _N, _N, _S],
    "drafts_take": [_P, _N, _N, _N],
    "drafts_keep": [_P, _P, _N],
    "drafts_commit": [_P, py_object, _N],
    "drafts_inputs": [_P, _N, _P],
    "drafts_likeliest": [_P, _P, _P],
    "drafts_propose": [_P, _P, _N, _N, _P],
}

_is_off = False


def library() -> ctypes.PyDLL | None:
    """The library, which the first call compiles or finds on disk; None where it cannot be had."""
    return None if _is_off else _load()


@contextmanager
def python_alone() -> Iterator[None]:
    """Lets the Python code run instead of the library; for comparisons."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


@cache
def _load() -> ctypes.PyDLL | None:
    folder = cache_files.folder("compiled")
    if folder is None:
        return None
    text = (SOURCE / "host.cpp").read_text(encoding="utf-8")
    try:
        built = build(Source("host", "host", text, SOURCE, FLAGS, "once for this machine"), folder)
        found = load_library(built, ctypes.PyDLL)
    except CannotBuild as error:
        log.warning("drafts are made by Python code, which is slower: %s", error)
        return None
    assert isinstance(found, ctypes.PyDLL)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    probe = np.zeros(1)
    if found.array_address(probe) != probe.__array_interface__["data"][0]:
        log.warning("drafts are made by Python code, which is slower: this Python or numpy lays out arrays differently")
        return None
    return found
