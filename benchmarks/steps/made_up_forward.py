"""Stands for a model's fastest forward: makes what that reads, and computes nothing."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lp.model.causal import CausalModel, SequenceRows
from lp.model.fast.step_tensors import StepBuffer
from lp.model.kv.arena import Arena, LayerShape
from lp.model.native.forward import NativeForward

NO_LOGITS = torch.empty(0, 0)
PAGES_OF_A_SEQUENCE = 9


@dataclass
class MadeUpForward:
    """A FastForward that computes nothing: it notes when it has what it reads. lay_out: makes that."""

    lay_out: Callable[[Sequence[SequenceRows]], object]
    began: float = 0.0
    started: float = 0.0
    num_rows: int = 0
    begins_caches = owns_weights = is_invariant = True

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        self.began, self.started = time.perf_counter(), 0.0
        self.lay_out(given)
        self.started = self.started or time.perf_counter()
        self.num_rows = sum(len(rows.tree) for rows in given)
        return NO_LOGITS


def make_forward(model: CausalModel, forward: str, num_sequences: int) -> tuple[CausalModel, MadeUpForward]:
    """A copy of the model whose caches are of the forward's kind, and what takes the forward's place.

    forward: "GPU" for what a GPU's graphs read, "CPU" for what the native forward reads.
    """
    model = copy.copy(model)
    if forward == "CPU":
        assert isinstance(model.fast, NativeForward), "there is no compiler for the native forward"
        native = copy.copy(model.fast)
        model.fast = made_up = MadeUpForward(native)
        native._library = cast(Any, _NoForward(made_up))
        return model, made_up
    cpu = torch.device("cpu")
    num_pages = PAGES_OF_A_SEQUENCE * num_sequences
    model.memory = Arena({0: LayerShape(1, 8, 8)}, 1, num_pages, torch.float32, cpu, in_runs=False)
    buffers: dict[int, StepBuffer] = {}

    def fill(given: Sequence[SequenceRows]) -> None:
        num_rows, pairs = 0, list[Any]()
        for tree, cache, _ in given:
            num_rows += len(tree)
            pairs.append((tree, cache))
        rung = (num_rows - 1).bit_length()
        if rung not in buffers:
            buffers[rung] = StepBuffer(1 << rung, num_sequences, model.max_length, cpu)
        buffers[rung].fill(pairs)

    model.fast = made_up = MadeUpForward(fill)
    return model, made_up


@dataclass
class _NoForward:
    """Stands for the library of a native forward."""

    made_up: MadeUpForward

    def forward(self, *arguments: object) -> None:
        self.made_up.started = time.perf_counter()
