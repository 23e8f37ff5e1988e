"""Makes a model's forward fast, if that is wanted, pays and can be done; else it stays as it is, which is said once."""

from __future__ import annotations

import logging
import shutil
import time
from enum import StrEnum
from functools import partial
from pathlib import Path

import psutil

from lp.model.attention import MaskKey
from lp.model.causal import CausalModel, FastForward
from lp.model.exactness import TOLERANCE, relative_error
from lp.model.fast.ahead_of_time import CompilationFailed, compile_ahead
from lp.model.fast.cuda_graphs import CapturedForward
from lp.model.fast.traced import TracedForward
from lp.model.kernels import AttentionKind
from lp.model.kv_cache import KVCache
from lp.tree import TokenTree, TreeBuilder, chain

log = logging.getLogger("lookahead")

WORTHWHILE = 4_000_000
"""Parameters from which compilation pays: a smaller model's step is over in a millisecond or two as it is."""


class CompileMode(StrEnum):
    """auto: where it can be done and pays. on: whatever the size, a failure is an error. off: transformers' code."""

    auto = "auto"
    on = "on"
    off = "off"


def make_fast(model: CausalModel, mode: CompileMode, folder: Path | None) -> None:
    """Gives a whole model that is on one device a fast forward. folder: where compiled code is kept.

    Raises ValueError if it is `on` and cannot be had.
    """
    num_parameters = sum(weight.numel() for weight in model.model.parameters())
    if mode is CompileMode.off or (mode is CompileMode.auto and num_parameters < WORTHWHILE):
        return
    started = time.monotonic()
    try:
        _compile(model, folder)
        log.info("the forward is compiled (%.1f s)", time.monotonic() - started)
    except CompilationFailed as error:
        if mode is CompileMode.on:
            raise ValueError(f"model.compile=on: {error}; use model.compile=off") from error
        log.warning("the forward is not compiled: %s", error)


def _compile(model: CausalModel, folder: Path | None) -> None:
    cache, trees = _cached(model), [chain([1]), _branching(model)]
    own = [model.forward_eager(tree, cache, len(tree)) for tree in trees]
    mask_keys = list(own[0][1].masks)
    make = _capture if model.device.type == "cuda" else partial(_compile_for_cpu, cache=cache, folder=folder)
    errors = [0.0]
    for fresh in (False, True):  # what was found on disk may be of another model after all
        model.fast = make(model, mask_keys, fresh=fresh)
        errors = [
            relative_error(model.forward(tree, cache, len(tree)), logits)
            for tree, (logits, _) in zip(trees, own, strict=True)
        ]
        if max(errors) <= TOLERANCE[model.dtype]:
            return
    model.fast = None
    raise CompilationFailed(f"it gives other logits than the model (relative error {max(errors):.2g})")


def _compile_for_cpu(
    model: CausalModel, mask_keys: list[MaskKey], cache: KVCache, folder: Path | None, fresh: bool
) -> FastForward:
    if folder is None:
        raise CompilationFailed("there is no folder to keep it in")
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        raise CompilationFailed("there is no C++ compiler; install g++")
    needed = 2 * sum(weight.numel() * weight.element_size() for weight in model.model.parameters())
    if needed > (free := psutil.virtual_memory().available):
        raise CompilationFailed(
            f"its packed weights take {needed / 1e9:.1f} GB beside the model, and {free / 1e9:.1f} GB are free"
        )
    return compile_ahead(model, cache, mask_keys, folder, fresh)


def _capture(model: CausalModel, mask_keys: list[MaskKey], fresh: bool) -> FastForward:
    if model.attention_kind not in (AttentionKind.flash, AttentionKind.varlen):
        raise CompilationFailed(f"CUDA graphs need attention=flash or varlen, and this is {model.attention_kind}")
    if any(window is not None for window, _ in mask_keys):
        raise CompilationFailed("CUDA graphs do without sliding windows, and this model has them")
    return CapturedForward(TracedForward(model.model, model.attention_kind, mask_keys), mask_keys)


def _cached(model: CausalModel) -> KVCache:
    """A cache with a few tokens of made-up text."""
    cache = model.make_cache(capacity=32)
    model.forward_eager(chain([token % model.vocab_size for token in range(3, 10)]), cache, num_logits=1)
    cache.keep(range(7))
    return cache


def _branching(model: CausalModel) -> TokenTree:
    builder = TreeBuilder(10 % model.vocab_size)
    for parent in (0, 0, 1, 2):
        builder.add((11 + parent) % model.vocab_size, parent)
    return builder.build()
