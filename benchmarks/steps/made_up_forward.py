"""Stands for a model's fastest forward: makes what that reads, and computes nothing.

Of a GPU it is the code that runs graphs, up to where the first one is launched; copies to the device are left out.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from lp.kv_cache.arena import Arena, LayerShape
from lp.model.causal import CausalModel
from lp.model.cpu.forward import NativeForward
from lp.model.fast_forward import Choose, Choosing, Computed, FastForward, SequenceRows
from lp.model.gpu import cuda_graphs
from lp.model.gpu.cuda_graphs import CapturedForward

NO_LOGITS = torch.empty(0, 0)
PAGES_OF_A_SEQUENCE = 9


@dataclass
class MadeUpForward(FastForward):
    """Computes nothing: it notes when it has what it reads. lay_out: makes that."""

    lay_out: Callable[[Sequence[SequenceRows]], object]
    began: float = 0.0
    started: float = 0.0
    num_rows: int = 0
    owns_weights = is_invariant = True

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        self.began, self.started = time.perf_counter(), 0.0
        self.lay_out(given)
        self.started = self.started or time.perf_counter()
        self.num_rows = sum(len(rows.tree) for rows in given)
        return NO_LOGITS


class MadeUpGraphs(CapturedForward):
    """The forward of a GPU, whose graphs compute nothing: the first one that is launched notes that the forward has
    what it reads. See MadeUpForward.
    """

    def __init__(self, arena: Arena, max_length: int):
        self.began = self.started = 0.0
        self.num_rows = 0
        with on_no_gpu():
            super().__init__(_NoKernels(arena), max_length, capture=lambda run, pool: (self._note_start, NO_LOGITS))

    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        with on_no_gpu(), patch.object(cuda_graphs, "capture_on_gpu", lambda run, pool: (lambda: None, NO_LOGITS)):
            super().capture_choosing(kinds)

    def compute(self, given: Sequence[SequenceRows], how: Sequence[Choosing | None]) -> Computed | None:
        self.began = time.perf_counter()
        computed = super().compute(given, how)
        self.num_rows = sum(len(rows.tree) for rows in given)
        return computed

    def _note_start(self) -> None:
        self.started = time.perf_counter()


@dataclass
class _NoKernels:
    """Stands for what graphs capture. See ArenaForward."""

    arena: Arena
    is_invariant, incoming_width, gives_logits, output_width = True, None, True, 1

    def __call__(self, *given: object) -> Tensor:
        return NO_LOGITS

    def differs_after_long(self, num_rows: int) -> bool:
        return False


def on_no_gpu() -> Any:
    """What graphs ask of a GPU, without one."""
    return patch.multiple(torch.cuda, mem_get_info=lambda device: (0, 0), graph_pool_handle=lambda: None)


def make_forward(
    model: CausalModel, forward: str, num_sequences: int
) -> tuple[CausalModel, MadeUpForward | MadeUpGraphs]:
    """A copy of the model whose caches are of the forward's kind, and what takes the forward's place.

    forward: "GPU" for what a GPU's graphs read, "CPU" for what the native forward reads.
    """
    model = copy.copy(model)
    if forward == "CPU":
        assert isinstance(model.fast, NativeForward), "there is no compiler for the native forward"
        native = copy.copy(model.fast)
        model.fast = made_up = MadeUpForward(native)
        native._run_program = cast(Any, _NoForward(made_up))
        return model, made_up
    num_pages = PAGES_OF_A_SEQUENCE * num_sequences
    model.memory = Arena({0: LayerShape(1, 8, 8)}, 1, num_pages, torch.float32, torch.device("cpu"))
    model.fast = graphs = MadeUpGraphs(model.memory, model.max_length)
    return model, graphs


@dataclass
class _NoForward:
    """Stands for the function that runs a native forward's program."""

    made_up: MadeUpForward

    def __call__(self, *arguments: object) -> None:
        self.made_up.started = time.perf_counter()
