"""The attention of prompts, by FlashAttention where that is right on this GPU and faster than our own kernel.

The first rows of a prompt are a chain, whose rows see all keys before them, so FlashAttention can compute them. The
rows of trees are left to our own kernel, for which a chain above them is a part of the prefix, as its keys are in the
arena by then.

    R rows of B sequences, T of them left to our own kernel, H key/value heads, G query heads for each of them,
    D head dimension
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache.arena import Arena, PagedCache
from lp.kv_cache.cache import LayerShape, pages_of
from lp.model.errors import one_line
from lp.model.fast_forward import SequenceRows
from lp.model.gpu import attention
from lp.model.gpu.flash import KERNELS, Chains, FlashKernel, obstacle
from lp.model.gpu.step_tensors import StepBuffer, StepTensors
from lp.model.kernels import LayerAttention
from lp.model.program.steps import Attention, Operand, Value
from lp.platform.hardware import upload
from lp.tree import TokenTree, chain

log = logging.getLogger("lookahead")

# A chain of fewer rows is left to our own kernel.
LEAST_ROWS = 128
# By which functions are checked and timed: rows and cached tokens of three sequences, the last of which has too few
# rows for a prompt, and of one.
CHECKED, TIMED = ((300, 500), (200, 0), (5, 9)), (2048, 2048)
# The standard deviation of scores in these: a few keys count for most of a row, so one key too many or too few shows.
SPREAD = 3.0
# How far numbers of about 1 may be from those of our own kernel.
TOLERANCE = {torch.float16: 0.01, torch.bfloat16: 0.05}
# Calls in one reading of the time, and readings, of which the shortest counts.
CALLS, READINGS = 4, 3
OWN = "the Triton kernel"


@dataclass(frozen=True)
class PromptRows:
    """The rows of a step with prompts.

    chains: given to FlashAttention, with all rows of the step. others: int64 [T] the rows that are not in a chain.
    rest: these rows as a step of their own; None if there are none.
    """

    chains: Chains
    others: Tensor
    rest: StepTensors | None


def find_prompts(given: Sequence[SequenceRows], tensors: StepTensors) -> PromptRows | None:
    """The prompts of a step; None if there are none. tensors: the same step on the device, without padding."""
    sizes = np.array([one.tree.num_rows for one in given])
    if sizes.max() < LEAST_ROWS:
        return None
    chained = np.array([one.tree.num_trunk for one in given])
    chained[chained < LEAST_ROWS] = 0
    if not chained.any():
        return None
    device, cached = tensors.tokens.device, np.array([one.cache.length for one in given])
    starts = np.cumsum(sizes) - sizes
    lengths = np.where(chained > 0, cached + sizes, 0)
    most = int(lengths.max())
    table = tensors.block_table[:, : pages_of(most)]
    chains = Chains(
        tensors.row_starts, _upload(lengths, device), _upload(_ends(lengths), device), table, int(sizes.max()), most
    )
    owners = np.flatnonzero(sizes > chained)
    ends = starts + sizes
    others = [np.arange(first, end) for first, end in zip(starts + chained, ends, strict=True)]
    rows = upload(np.concatenate(others), device)
    if not len(owners):
        return PromptRows(chains, rows, None)
    counts = (sizes - chained)[owners]
    rest = replace(
        tensors,
        tokens=tensors.tokens[rows],
        positions=tensors.positions[rows],
        slots=tensors.slots[rows],
        visibility=tensors.visibility[rows].index_select(1, rows),
        sequence_of=_upload(np.repeat(np.arange(len(owners)), counts), device),
        lengths=_upload((cached + chained)[owners], device),
        row_starts=_upload(_ends(counts), device),
        block_table=tensors.block_table[upload(owners, device)],
    )
    return PromptRows(chains, rows, rest)


def _ends(counts: np.ndarray) -> np.ndarray:
    """0, and the sums of the first counts."""
    return np.concatenate([[0], np.cumsum(counts)])


def _upload(numbers: np.ndarray, device: torch.device) -> Tensor:
    return upload(numbers.astype(np.int32), device)


def attend_prompts(
    kernel: FlashKernel,
    step: Attention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prompts: PromptRows,
    counters: Tensor,
) -> Tensor:
    """[R, H*G*D] by FlashAttention, and by our own kernel where rows are in no chain. See `attention.attend`."""
    how = step.how
    heads = _heads(step, query).to(keys.dtype)
    found = kernel.attend(
        heads, keys, values, prompts.chains, how.scale, how.sliding_window or 0, float(how.softcap or 0.0)
    )
    out = found.reshape(len(query), -1)
    if prompts.rest is not None:
        own = out.new_empty(len(prompts.others), out.shape[1])
        attention.attend(step, query[prompts.others], keys, values, prompts.rest, counters, own)
        out.index_copy_(0, prompts.others, own)
    return out


def _heads(step: Attention, query: Tensor) -> Tensor:
    """The query as [R, H*G, D], whose rows and heads begin at multiples of 16 bytes, as FlashAttention loads them."""
    strides = query.stride(0), step.head_stride or step.head_dim, 1
    shape = len(query), step.num_heads * step.num_groups, step.head_dim
    heads = query[:, step.query.start :].as_strided(shape, strides)
    is_aligned = not any(number % 8 for number in (step.query.start, *strides[:2]))
    return heads if is_aligned else heads.contiguous()


class LayerKind(NamedTuple):
    """Layers whose attention is computed alike."""

    num_heads: int
    num_groups: int
    head_dim: int
    value_dim: int
    how: LayerAttention
    has_sinks: bool = False

    @staticmethod
    def of(step: Attention) -> LayerKind:
        own = step.num_heads, step.num_groups, step.head_dim, step.value_dim
        return LayerKind(*own, step.how, step.sinks is not None)

    def step(self) -> Attention:
        """The attention of a layer whose query is an array of its own."""
        num_queries = self.num_heads * self.num_groups
        query = Operand(Value(num_queries * self.head_dim), 0, (self.head_dim,))
        sizes = self.num_heads, self.num_groups, self.head_dim, self.value_dim
        return Attention(Value(num_queries * self.value_dim), query, 0, self.how, *sizes)

    def describe(self) -> str:
        how = self.how
        text = f"{self.num_heads * self.num_groups} heads of {self.head_dim}, {self.num_heads} of keys"
        text += f" with values of {self.value_dim}" if self.value_dim != self.head_dim else ""
        text += f", a window of {how.sliding_window}" if how.sliding_window else ""
        text += f", chunks of {how.chunk_size}" if how.chunk_size else ""
        text += f", a softcap of {how.softcap:g}" if how.softcap else ""
        return text + (", sinks" if self.has_sinks else "")


@dataclass(frozen=True)
class Problem:
    """Random prompts of a layer. query: [R, H*G*D]. keys, values: [pages, PAGE, H, D]. counters: see `attend`."""

    step: Attention
    query: Tensor
    keys: Tensor
    values: Tensor
    given: StepTensors
    prompts: PromptRows
    counters: Tensor

    @staticmethod
    def make(
        kind: LayerKind, dtype: torch.dtype, device: torch.device, sequences: Sequence[tuple[TokenTree, int]]
    ) -> Problem:
        """sequences: the tree of each, and its number of cached tokens. One of them begins with a chain."""
        num_pages = sum(pages_of(cached + len(tree)) for tree, cached in sequences)
        shape = LayerShape(kind.num_heads, kind.head_dim, kind.value_dim)
        arena = Arena({0: shape}, 1, num_pages, dtype, device)
        given = [_open(arena, *one) for one in sequences]
        num_rows = sum(len(tree) for tree, _ in sequences)
        buffer = StepBuffer(num_rows, len(given), max(len(tree) + cached for tree, cached in sequences), device)
        buffer.fill(given)
        random, step = np.random.default_rng(0), kind.step()

        def numbers(*shape: int, scale: float = 1.0) -> Tensor:
            return (upload(random.standard_normal(shape, np.float32), device) * scale).to(dtype)

        keys, values = (numbers(*store.shape) for store in (arena.keys[0], arena.values[0]))
        width = kind.num_heads * kind.num_groups * kind.head_dim
        query = numbers(num_rows, width, scale=SPREAD / (kind.how.scale * kind.head_dim**0.5))
        prompts = find_prompts(given, buffer.on_device)
        assert prompts is not None
        return Problem(step, query, keys, values, buffer.on_device, prompts, attention.new_counters(device))

    def by_own(self) -> Tensor:
        out = torch.empty_like(self.query)
        attention.attend(self.step, self.query, self.keys, self.values, self.given, self.counters, out)
        return out

    def by(self, kernel: FlashKernel) -> Tensor:
        return attend_prompts(kernel, self.step, self.query, self.keys, self.values, self.prompts, self.counters)


def _open(arena: Arena, tree: TokenTree, num_cached: int) -> SequenceRows:
    """A sequence whose pages do not lie in their order."""
    cache = arena.open()
    assert isinstance(cache, PagedCache)
    cache.length = num_cached
    cache.reserve(len(tree))
    cache.pages.reverse()
    return SequenceRows(tree, cache, 0)


@dataclass(frozen=True)
class Trial:
    """What a function was found to be for a kind of layer.

    kernel: None is our own. obstacle: why it cannot be used; empty if it can be. is_broken: whether it should have
    worked. seconds: for TIMED; None if it was not timed.
    """

    name: str
    kernel: FlashKernel | None = None
    obstacle: str = ""
    is_broken: bool = False
    seconds: float | None = None


@torch.inference_mode()
def try_kernels(kind: LayerKind, dtype: torch.dtype, device: torch.device) -> list[Trial]:
    """Tries all functions on a GPU. Our own is the last, and not timed if no other can be used."""
    obstacles = {one: find_obstacle(one, kind, dtype, device) for one in KERNELS}
    usable = [one for one, obstacle in obstacles.items() if not obstacle]
    faults = _find_faults(usable, kind, dtype, device) if usable else {}
    right = [one for one in usable if not faults[one]]
    seconds = _measure(right, kind, dtype, device) if right else {}
    trials = [
        Trial(one.name, one, why or faults[one], bool(faults.get(one)), seconds.get(one))
        for one, why in obstacles.items()
    ]
    return [*trials, Trial(OWN, seconds=seconds.get(None))]


def find_obstacle(kernel: FlashKernel, kind: LayerKind, dtype: torch.dtype, device: torch.device) -> str:
    """Why a function is not tried; empty if it is."""
    if kind.how.softcap and not kernel.knows_softcap:
        return "it knows no softcap"
    if kind.how.chunk_size:
        return "it knows no chunks"
    if kind.value_dim != kind.head_dim:
        return "it wants values as large as keys"
    if kind.has_sinks:
        return "it knows no sinks"
    return kernel.missing() or obstacle(device, dtype, kind.head_dim)


def _find_faults(
    kernels: Sequence[FlashKernel], kind: LayerKind, dtype: torch.dtype, device: torch.device
) -> dict[FlashKernel, str]:
    """What is wrong with what each computes; empty if nothing is."""
    window = kind.how.sliding_window or 0  # so that rows do not see all of the first sequence
    sequences = [(chain([0] * rows), cached and cached + window) for rows, cached in CHECKED]
    problem = Problem.make(kind, dtype, device, sequences)
    expected = problem.by_own()
    return {kernel: find_fault(partial(problem.by, kernel), expected) for kernel in kernels}


def _measure(
    kernels: Sequence[FlashKernel], kind: LayerKind, dtype: torch.dtype, device: torch.device
) -> dict[FlashKernel | None, float]:
    """The seconds that each takes, and our own (None)."""
    num_rows, num_cached = TIMED
    problem = Problem.make(kind, dtype, device, [(chain([0] * num_rows), num_cached)])
    found: dict[FlashKernel | None, float] = {None: measure_s(problem.by_own, device)}
    for kernel in kernels:
        found[kernel] = measure_s(partial(problem.by, kernel), device)
    return found


def find_fault(run: Callable[[], Tensor], expected: Tensor) -> str:
    """What is wrong with what a function computes; empty if nothing is. expected: by our own kernel."""
    try:
        error = (run().float() - expected.float()).abs()
        bound = TOLERANCE[expected.dtype] * (1 + expected.float().abs())
        if (error <= bound).all().item():  # a NaN is not
            return ""
        return f"it computes other numbers than {OWN} (they differ by up to {error.max().item():.2g})"
    except Exception as problem:  # a library built for another torch or GPU can raise anything
        return f"it fails ({type(problem).__name__}: {one_line(problem)})"


def measure_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, on a GPU."""
    readings = []
    for _ in range(1 + READINGS):  # the first one warms up
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(CALLS):
            run()
        torch.cuda.synchronize(device)
        readings.append((time.perf_counter() - begin) / CALLS)
    return min(readings[1:])


def _try_if_possible(kind: LayerKind, dtype: torch.dtype, device: torch.device) -> list[Trial]:
    """What `try_kernels` finds; our own kernel alone if that fails, as whatever is wrong with it shows in a capture."""
    try:
        return try_kernels(kind, dtype, device)
    except RuntimeError as error:
        log.warning("prompts are computed by %s, as no other can be tried: %s", OWN, one_line(error))
        return [Trial(OWN)]


class PromptAttention:
    """Decides by which function the prompts of a model are computed, for each kind of its layers.

    trials: by which it was decided.
    """

    def __init__(self, steps: Iterable[Attention], dtype: torch.dtype, device: torch.device):
        """steps: of all layers. dtype: of keys and values."""
        kinds = dict.fromkeys(map(LayerKind.of, steps))
        self.trials = {kind: _try_if_possible(kind, dtype, device) for kind in kinds}
        chosen = {kind: fastest(trials) for kind, trials in self.trials.items()}
        self._kernels = {kind: one.kernel for kind, one in chosen.items() if one.kernel is not None}
        for kind, trials in self.trials.items():
            for trial in trials:
                if trial.is_broken:
                    log.warning("prompts are computed without %s: %s", trial.name, trial.obstacle)
            log.info("attention of prompts: %s, in layers of %s", describe(trials), kind.describe())

    def find(self, given: Sequence[SequenceRows], tensors: StepTensors, counters: Tensor) -> PromptStep | None:
        """A step's prompts; None if our own kernel computes all rows. given, tensors: see `find_prompts`. counters: see
        `attend`.
        """
        prompts = find_prompts(given, tensors) if given and self._kernels else None
        return prompts and PromptStep(self._kernels, prompts, counters)


@dataclass(frozen=True)
class PromptStep:
    """A step with prompts. kernels: by the kind of layer; our own kernel is not among them."""

    kernels: dict[LayerKind, FlashKernel]
    prompts: PromptRows
    counters: Tensor

    def attend(self, step: Attention, query: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
        """A layer's attention; None, with nothing done, if our own kernel computes all of it."""
        kernel = self.kernels.get(LayerKind.of(step))
        return kernel and attend_prompts(kernel, step, query, keys, values, self.prompts, self.counters)


def fastest(trials: Sequence[Trial]) -> Trial:
    """The one that is used."""
    timed = [trial for trial in trials if trial.seconds is not None]
    return min(timed, key=lambda trial: trial.seconds or 0.0, default=trials[-1])


def describe(trials: Sequence[Trial]) -> str:
    """Which function is used, and what it and others have taken."""
    chosen, (rows, cached) = fastest(trials), TIMED
    if chosen.seconds is None:
        return chosen.name
    others = [f"; {one.name} {one.seconds * 1e3:.2f} ms" for one in trials if one.seconds and one is not chosen]
    took = f"{chosen.seconds * 1e3:.2f} ms for {rows:,} rows after {cached:,} tokens"
    return f"{chosen.name} ({took}{''.join(others)})"
