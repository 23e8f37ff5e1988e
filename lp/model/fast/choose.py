"""Gives a model a fast forward, if that is wanted, worthwhile and possible.

If it is not possible, one warning is logged and the model keeps its own forward. Knows nothing of how the fast forwards
work.
"""

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

# The number of parameters from which compiling pays: a smaller model's step takes a millisecond or two anyway.
WORTHWHILE = 4_000_000


class CompileMode(StrEnum):
    """Whether to compile the forward.

    auto: if the model is large enough for it to pay and it can be done. on: whatever the model's size, and a failure is
    an error. off: never.
    """

    auto = "auto"
    on = "on"
    off = "off"


def make_fast(model: CausalModel, mode: CompileMode, folder: Path | None) -> None:
    """Gives a model, of which this rank holds all layers, a fast forward.

    folder: where compiled code is kept; None if nothing can be kept. Raises ValueError if the mode is `on` and the
    forward cannot be compiled.
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
    """Sets the model's fast forward and compares its logits with the model's own. Raises CompilationFailed."""
    cache, trees = _filled_cache(model), [chain([1]), _branching_tree(model)]
    expected = [model.forward_eager(tree, cache, len(tree)) for tree in trees]
    mask_keys = list(expected[0][1].masks)
    make = _capture if model.device.type == "cuda" else partial(_compile_for_cpu, cache=cache, folder=folder)
    errors = [0.0]
    for fresh in (False, True):  # what was found on disk may belong to another model in spite of its digest
        model.fast = make(model, mask_keys, fresh=fresh)
        errors = [
            relative_error(model.forward(tree, cache, len(tree)), logits)
            for tree, (logits, _) in zip(trees, expected, strict=True)
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
        raise CompilationFailed("CUDA graphs do not support sliding windows, and this model has them")
    return CapturedForward(TracedForward(model.model, model.attention_kind, mask_keys), mask_keys)


def _filled_cache(model: CausalModel) -> KVCache:
    """A cache that holds seven tokens of a made-up text."""
    cache = model.make_cache(capacity=32)
    model.forward_eager(chain([token % model.vocab_size for token in range(3, 10)]), cache, num_logits=1)
    cache.keep(range(7))
    return cache


def _branching_tree(model: CausalModel) -> TokenTree:
    """A root with two branches, in five rows."""
    builder = TreeBuilder(10 % model.vocab_size)
    for parent in (0, 0, 1, 2):
        builder.add((11 + parent) % model.vocab_size, parent)
    return builder.build()
