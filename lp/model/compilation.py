"""Gives a model a fast forward, if that is wanted, worthwhile and possible.

If it is not possible, one warning is logged and the model keeps its own forward. Knows nothing of how the fast forwards
work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from lp.kv_cache.arena import Arena
from lp.kv_cache.cache import KVCache, LayerShape
from lp.model.causal import CausalModel
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.cpu.build import begin
from lp.model.cpu.make import find_cache_shapes, make_native
from lp.model.exactness import run_trees, write_prefixes
from lp.model.fast_forward import FastForward, ForwardFailed, SequenceRows
from lp.model.gpu.cuda_graphs import Capture, CapturedForward, capture_on_gpu
from lp.model.gpu.device import current
from lp.model.gpu.make import make_fused
from lp.model.gpu.product_times import time_on_gpu
from lp.model.memory import available_memory
from lp.model.program.group import RankGroup
from lp.model.program.record import Inexpressible
from lp.model.program.translate import MORE_ROWS, translate
from lp.model.reference import Probe, Reference, make_references
from lp.model.weightless import weightless_model
from lp.platform import disk_cache
from lp.platform.build import CannotBuild, NoCompiler, find_compiler, missing_triton
from lp.platform.library import library
from lp.tree import TokenTree, chain

if TYPE_CHECKING:  # it needs the package gguf
    from lp.model.gguf_header import GgufHeader

log = logging.getLogger("lookahead")

Made = TypeVar("Made")

# The number of parameters from which compiling pays: a smaller model's step takes a millisecond or two anyway.
WORTHWHILE = 4_000_000


class CompilationFailed(RuntimeError):
    """The forward cannot be compiled here. The message says why, on one line."""


class CompileMode(StrEnum):
    """Whether to compile the forward.

    auto: if the model is large enough for it to pay and it can be done. on: whatever the model's size, and a failure is
    an error. off: never.
    """

    auto = "auto"
    on = "on"
    off = "off"


def make_fast(
    model: CausalModel,
    mode: CompileMode,
    folder: Path | None,
    references: list[Reference] | None = None,
    capture: Capture | None = None,
    is_invariant: bool = False,
    is_checked: bool = False,
    group: RankGroup | None = None,
) -> bool:
    """Gives a model a fast forward. Returns False, with a warning in the log, if it should have one and has none.

    folder: where compiled code is kept; None if nothing can be kept. references: what the fast forward is compared
    with; None makes them. is_checked: whether the same forward has passed before on this CPU, so that it is compared
    with nothing. capture: captures the forward of one of several ranks that hold parts of every layer: all of
    them have graphs, or none has; None is for a rank that holds the whole model. is_invariant: whether each row must be
    computed alike, whatever the others are: on a GPU that takes longer. group: the ranks that share the model, which
    all call this; None is for a rank that holds the whole model. Raises ValueError if the mode is `on` and the forward
    cannot be compiled as demanded.
    """
    if mode is CompileMode.off or (mode is CompileMode.auto and _is_small(model, group)):
        return True
    try:
        fast = _make(model, folder, references, capture, is_invariant, is_checked, group)
        model.fast, model.cache_shapes = fast, dict(fast.cache_shapes or model.cache_shapes)
        return True
    except CompilationFailed as error:
        if is_invariant:
            how = "in fused kernels" if model.device.type == "cuda" else "natively"
            name = type(model.model).__name__
            raise ValueError(
                f"model.invariant=on: {name} cannot be compiled {how}: {error}; use model.invariant=auto"
            ) from error
        if mode is CompileMode.on:
            raise ValueError(f"model.compile=on: {error}; use model.compile=off") from error
        if isinstance(error.__cause__, NoCompiler) and library() is None:
            return True  # the line about that says so
        log.warning("the forward is not compiled: %s (model.compile=off does not try it)", error)
        return False


def begin_kernels(header: GgufHeader, mode: CompileMode, dtype: torch.dtype) -> None:
    """Starts to compile what the native forward of a GGUF file needs for its quantised weights, before it is read."""
    if mode is CompileMode.off or (mode is CompileMode.auto and header.num_elements < WORTHWHILE):
        return
    from lp.model.quantization.gguf_blocks import BLOCK_TYPES

    kinds = {one.kind for one in header.tensors.values()}
    if (folder := disk_cache.folder("compiled")) is not None:
        begin([one.format for kind, one in BLOCK_TYPES.items() if kind in kinds], dtype, folder)


class ExpectedForward(NamedTuple):
    """Which forward a model would have. reason: why it would keep its own; empty if it would get a fast one.
    cache_shapes: see FastForward.
    """

    reason: str = ""
    cache_shapes: Mapping[int, LayerShape] | None = None


def expect_forward(
    known: CheckpointInfo, mode: CompileMode, device: torch.device, dtype: torch.dtype
) -> ExpectedForward:
    """Finds out from a model's configuration which forward it would have.

    No weights are read, and nothing is compiled. Memory, the compiler's work and the check of logits are left to
    `make_fast`.
    """
    if known.plain:
        return ExpectedForward(known.plain)
    if mode is CompileMode.off:
        return ExpectedForward("model.compile=off says so")
    try:
        if device.type != "cuda":
            find_compiler()
        elif missing := missing_triton():
            return ExpectedForward(missing)
        model = CausalModel(weightless_model(known.config, dtype), known.max_length, known.eos)
        if mode is CompileMode.auto and _is_small(model, None):
            return ExpectedForward(f"below {WORTHWHILE / 1e6:.0f}M parameters compiling does not pay")
        if device.type != "cuda":
            return ExpectedForward(cache_shapes=find_cache_shapes(model))
        translate(model, MORE_ROWS)
    except Inexpressible as error:
        return ExpectedForward(f"it cannot be written as a program: {error}")
    except CannotBuild as error:
        return ExpectedForward(str(error))
    return ExpectedForward()


def _is_small(model: CausalModel, group: RankGroup | None) -> bool:
    """Whether compiling does not pay. All ranks that share a model find the same."""
    if model.device.type == "cuda" and group is not None:
        return False
    is_small = sum(weight.numel() for weight in model.model.parameters()) < WORTHWHILE
    return is_small if group is None else group.agree(is_small)


def _make(
    model: CausalModel,
    folder: Path | None,
    references: list[Reference] | None,
    capture: Capture | None,
    is_invariant: bool,
    is_checked: bool,
    group: RankGroup | None,
) -> FastForward:
    """A fast forward that gives the references' logits. Raises CompilationFailed."""
    started = time.monotonic()
    references = [] if is_checked else references or make_references(model)
    try:
        with current(model.device):
            if model.device.type == "cuda":
                fast = _captured(model, capture, is_invariant, group)
            else:
                fast = _made(group, lambda: make_native(model, _check_can_compile(model, folder), is_checked))
            fault = "" if is_checked else _find_fault(model, fast, references)
    except ForwardFailed as error:
        raise CompilationFailed(str(error)) from error
    if group is not None and not group.agree(not fault):
        raise CompilationFailed(fault or "on another of the ranks that share the model it gives other logits")
    if fault:
        raise CompilationFailed(fault)
    log.info("the forward is compiled (%.1f s)", time.monotonic() - started)
    return fast


def _made(group: RankGroup | None, make: Callable[[], Made]) -> Made:
    """What `make` returns. Raises CompilationFailed, on all ranks that share the model, if it fails on one of them."""
    made, failure = None, CompilationFailed("another of the ranks that share the model cannot compile it")
    try:
        made = make()
    except (CannotBuild, CompilationFailed, Inexpressible) as error:
        what = f"it cannot be written as a program: {error}" if isinstance(error, Inexpressible) else str(error)
        failure = CompilationFailed(what)
        failure.__cause__ = error
    do_all = group is None or group.agree(made is not None)
    if made is None or not do_all:
        raise failure
    return made


@dataclass
class _Caches:
    """One sequence's caches for a model's own forward and for its fast one: a single one if they cache the same."""

    own: KVCache
    fast: KVCache


def _find_fault(model: CausalModel, fast: FastForward, references: list[Reference]) -> str:
    """What is wrong with a fast forward; empty if it gives the references' logits but for rounding."""
    for given in references:
        reference = given if model.is_last_stage else _of_stage(model, given)
        answers = [one for probes in _batches(model, reference) for one in _fast_logits(model, fast, probes)]
        error = max(reference.error(logits) for logits in zip(*answers, strict=True))
        if error > reference.allowed:
            return (
                f"compiled, {type(model.model).__name__} gives other logits than the model itself (relative error "
                f"{error:.2g}; rounding explains up to {reference.allowed:.2g})"
            )
    return ""


def _batches(model: CausalModel, reference: Reference) -> list[list[Probe]]:
    """The probes that share forwards of the model's own, each of which may unpack all weights.

    A GPU, where that takes no time, may have memory for one sequence alone.
    """
    probes = reference.probes
    at_once = 1 if isinstance(model.memory, Arena) else len(probes)
    return [probes[first : first + at_once] for first in range(0, len(probes), at_once)]


def _of_stage(model: CausalModel, reference: Reference) -> Reference:
    """The reference of a stage before the last: the hidden states that the model's own layers hand on, which have been
    checked, in place of logits.
    """
    found = []
    for probes in _batches(model, reference):
        outgoing = run_trees(model, probes)[1].outgoing
        assert outgoing is not None, "a stage before the last has stand-ins for later layers"
        of_trees = outgoing[0].float().split([len(probe.tree) for probe in probes])
        found += [replace(probe, logits=own) for probe, own in zip(probes, of_trees, strict=True)]
    return replace(reference, probes=found)


def _fast_logits(model: CausalModel, fast: FastForward, probes: list[Probe]) -> list[list[Tensor]]:
    """Computes the logits of each probe by a fast forward: those of its tree, and where its whole trunk is cached also
    those of its root alone.
    """
    prefixes = [probe.trunk[: len(probe.trunk) - probe.num_computed] for probe in probes]
    caches = [_make_caches(model, fast, 2 * len(probe.trunk)) for probe in probes]
    for own, prefix in zip(caches, prefixes, strict=True):
        if own.fast is not own.own:
            _run_alone(model, fast, own, chain(prefix), 1)
            own.fast.keep(range(len(prefix)))
    write_prefixes(model, prefixes, [one.own for one in caches])
    answers = []
    for probe, prefix, own in zip(probes, prefixes, caches, strict=True):
        computed = probe.trunk[len(prefix) :]
        trees = [probe.tree, *([] if computed else [chain(probe.tree.tokens[:1].tolist())])]
        answers.append([_run_alone(model, fast, own, tree.under(computed), len(tree)) for tree in trees])
    return answers


def _make_caches(model: CausalModel, fast: FastForward, capacity: int) -> _Caches:
    own = model.make_cache(capacity)
    return _Caches(own, own if fast.cache_shapes in (None, model.cache_shapes) else model.make_cache(capacity))


def _run_alone(model: CausalModel, fast: FastForward, caches: _Caches, tree: TokenTree, num_logits: int) -> Tensor:
    """What a fast forward gives for those rows of one sequence whose logits are wanted, the last ones.

    A stage of a pipeline gets the hidden states with which the model's own forward begins where none come in.
    """
    rows = SequenceRows(tree, caches.fast, num_logits)
    caches.fast.reserve(len(tree))
    if model.is_first_stage and model.is_last_stage:
        return fast([rows])
    incoming = None if model.is_first_stage else model.forward_eager([rows._replace(cache=caches.own)])[1].incoming
    return fast.run_stage([rows], None if incoming is None else incoming[0].float())[-num_logits:]


def _check_can_compile(model: CausalModel, folder: Path | None) -> Path:
    """The folder for compiled code.

    Raises CompilationFailed or CannotBuild if nothing can be compiled for the CPU here.
    """
    if folder is None:
        raise CompilationFailed("there is no folder to keep it in")
    find_compiler()
    needed = model.weight_bytes
    if needed > (free := available_memory()):
        raise CompilationFailed(
            f"its packed weights take {needed / 1e9:.1f} GB beside the model, and {free / 1e9:.1f} GB are free"
        )
    return folder


def _captured(
    model: CausalModel, capture: Capture | None, is_invariant: bool, group: RankGroup | None
) -> CapturedForward:
    """A GPU's forward, of fused kernels, as graphs."""
    arena = model.memory
    assert isinstance(arena, Arena), "a GPU has an arena"
    fused = _made(group, lambda: make_fused(model, arena, is_invariant, time_on_gpu))
    return CapturedForward(fused, model.max_length, capture=capture or capture_on_gpu)
