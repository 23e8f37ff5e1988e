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
from torch import Tensor

from lp.model.attention import MaskKey
from lp.model.causal import CausalModel, FastForward
from lp.model.fast.ahead_of_time import CompilationFailed, compile_ahead
from lp.model.fast.cuda_graphs import CapturedForward
from lp.model.fast.traced import TracedForward
from lp.model.kernels import AttentionKind
from lp.model.kv_cache import KVCache
from lp.model.reference import Probe, Reference, make_references
from lp.tree import chain

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


def make_fast(
    model: CausalModel, mode: CompileMode, folder: Path | None, references: list[Reference] | None = None
) -> None:
    """Gives a model, of which this rank holds all layers, a fast forward.

    folder: where compiled code is kept; None if nothing can be kept. references: what the fast forward is compared
    with; None makes them. Raises ValueError if the mode is `on` and the forward cannot be compiled.
    """
    num_parameters = sum(weight.numel() for weight in model.model.parameters())
    if mode is CompileMode.off or (mode is CompileMode.auto and num_parameters < WORTHWHILE):
        return
    started = time.monotonic()
    try:
        _compile(model, folder, references or make_references(model))
        log.info("the forward is compiled (%.1f s)", time.monotonic() - started)
    except CompilationFailed as error:
        if mode is CompileMode.on:
            raise ValueError(f"model.compile=on: {error}; use model.compile=off") from error
        log.warning("the forward is not compiled: %s (model.compile=off does not try it)", error)


def _compile(model: CausalModel, folder: Path | None, references: list[Reference]) -> None:
    """Sets the model's fast forward and compares its logits with the references. Raises CompilationFailed."""
    trunk = references[-1].probes[0].trunk
    cache = model.make_cache(capacity=2 * len(trunk))
    _, step = model.forward_eager(chain(trunk), cache, num_logits=1)
    mask_keys = list(step.masks)
    make = _capture if model.device.type == "cuda" else partial(_compile_for_cpu, cache=cache, folder=folder)
    fault = None
    for fresh in (False, True):  # what was found on disk may belong to another model in spite of its digest
        model.fast = make(model, mask_keys, fresh=fresh)
        if (fault := _find_fault(model, cache, references)) is None:
            return
    model.fast = None
    raise CompilationFailed(fault)


def _find_fault(model: CausalModel, cache: KVCache, references: list[Reference]) -> str | None:
    """What is wrong with the fast forward; None if it gives the references' logits but for rounding."""
    for reference in references:
        answers = [_fast_logits(model, cache, probe) for probe in reference.probes]
        error = max(reference.error(logits) for logits in zip(*answers, strict=True))
        if error > reference.allowed:
            return (
                f"compiled, {type(model.model).__name__} gives other logits than the model itself (relative error "
                f"{error:.2g}; rounding explains up to {reference.allowed:.2g})"
            )
    return None


def _fast_logits(model: CausalModel, cache: KVCache, probe: Probe) -> tuple[Tensor, Tensor]:
    """Logits of a probe's root alone and of its whole tree by the fast forward, both after its trunk."""
    cache.length = 0
    model.forward_eager(chain(probe.trunk), cache, num_logits=1)
    cache.keep(range(len(probe.trunk)))
    root = chain(probe.tree.tokens[:1].tolist())
    return model.forward(root, cache, num_logits=1), model.forward(probe.tree, cache, num_logits=len(probe.tree))


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
