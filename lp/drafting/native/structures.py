"""The structures that Python hands to the library, as lp/platform/csrc/ has them: given.h, growth.h, corpus.h."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_double, c_int64, c_void_p
from typing import Any

from lp.drafting.contexts import LONGEST


class Shared(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            "rows", "cells", "odds", "probabilities", "hits", "trials",
        )
    ]  # fmt: skip


class InUse(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("shared_ngrams", "shared_answers", "index", "corpus")),
        *((name, c_int64) for name in ("has_suffix", "has_window", "has_recycled", "by_place")),
        *((f"first_{name}", c_int64) for name in ("suffix", "shared", "shared_answer", "window", "recycled")),
        *((f"first_{name}", c_int64) for name in ("index", "corpus")),
    ]


class CorpusArrays(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("ids", "places", "first")),
        *((name, c_int64) for name in ("num_ids", "id_bytes", "vocab_size", "most_places", "num_lengths")),
        ("lengths", c_int64 * LONGEST),
        *((name, c_int64) for name in ("trial_steps", "first_rest", "longest_rest")),
    ]


class Sizes(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("capacity", "num_candidates", "num_text_lengths", "num_window_lengths")),
        *((name, c_int64 * LONGEST) for name in ("text_lengths", "window_lengths")),
        *((f"most_{name}", c_int64) for name in ("text_contexts", "window_contexts", "answers", "places")),
        ("num_own_kinds", c_int64),
        *((name, c_double) for name in ("decay", "least_probability")),
        *((name, c_double) for name in ("gain_of_token", "overdraft", "most_funds")),
    ]


class Cost(ctypes.Structure):
    _fields_ = [
        ("most_rows", c_int64),
        ("num_parts", c_int64),
        ("host_row", c_double),
        *((name, c_void_p) for name in ("shared", "shared_slopes", "alone", "alone_slopes")),
    ]


class Figures(ctypes.Structure):
    _fields_ = [("expected", c_double), ("best_speed", c_double)]


class Handle:
    """An object of the library, freed with this one. address: its address."""

    def __init__(self, address: int, free: Any):
        self.address = address
        weakref.finalize(self, free, address)
