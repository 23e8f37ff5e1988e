"""Runs Triton kernels on CPU tensors by Triton's interpreter, and lays out keys and values in pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from lp.kv_cache.arena import Arena, LayerShape
from lp.kv_cache.cache import PAGE
from lp.kv_cache.moves import MOST_MOVES
from lp.model.gpu.forward import FusedForward
from lp.model.gpu.step_tensors import MOST_KINDS, NUM_CHOICES, StepTensors
from lp.platform import build as kernels
from lp.tree import TokenTree
from tests.lp.model.gpu.mended import mended


def start(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any
) -> None:
    """As kernels.start, on CPU tensors. Triton's interpreter knows no PTX."""
    from triton.runtime.interpreter import InterpretedFunction

    if "HAS_ASSEMBLY" in constants:
        constants["HAS_ASSEMBLY"] = False
    with mended(), interpreted_helpers(kernel):
        InterpretedFunction(kernel.fn)[grid](*arguments, **constants)


@contextmanager
def interpreted_helpers(kernel: Any) -> Iterator[None]:
    """Inside, the functions of our own that a kernel calls are interpreted too.

    They are plain Python functions: an InterpretedFunction would replace Triton's language anew at each call.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    names = kernel.fn.__globals__
    helpers = {name: one for name, one in names.items() if isinstance(one, JITFunction)}
    names.update({name: InterpretedFunction(one.fn).rewrite() for name, one in helpers.items()})
    try:
        yield
    finally:
        names.update(helpers)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all kernels interpreted, until the test ends; skips the test where Triton is missing."""
    if missing := kernels.missing_triton():
        pytest.skip(missing)
    monkeypatch.setattr(kernels, "start", start)


def run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the programs of interpreted kernels run from the last to the first, until the test ends."""
    from triton.runtime.interpreter import InterpreterBuilder

    forwards: Any = InterpreterBuilder.set_grid_idx

    def backwards(self: Any, *index: int) -> None:
        forwards(self, *(size - 1 - one for size, one in zip(self.grid_dim, index, strict=True)))

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", backwards)


class Pages:
    """An arena on the CPU with one sequence, whose pages lie in any order. shapes: by layer."""

    def __init__(self, shapes: Mapping[int, LayerShape], num_pages: int, dtype: torch.dtype = torch.float32):
        self.arena = Arena(shapes, len(shapes), num_pages, dtype, torch.device("cpu"))
        for tensor in (*self.arena.keys.values(), *self.arena.values.values()):
            tensor[1:] = float("nan")  # whoever reads what was never written is found out
        self.cache = self.arena.open()
        self.cache.reserve(num_pages * PAGE)
        np.random.default_rng(0).shuffle(self.cache.pages)

    def given(self, tree: TokenTree, num_padded: int = 0) -> StepTensors:
        """The rows of a tree behind the cached prefix, and padding, as StepBuffer makes them."""
        self.cache.apply_moves()
        num_rows, length = len(tree), self.cache.length
        padded = num_rows + num_padded
        visibility = np.eye(padded, dtype=bool)
        visibility[:num_rows, :num_rows] = tree.visibility
        padding = np.zeros(num_padded, np.int64)
        return StepTensors(
            tokens=torch.from_numpy(np.concatenate([tree.tokens, padding])),
            positions=torch.from_numpy(np.concatenate([tree.depths + length, padding])),
            moves=torch.zeros(2, MOST_MOVES, dtype=torch.int64),
            move_starts=torch.zeros(2, dtype=torch.int64),
            choices=torch.zeros(MOST_KINDS, padded, NUM_CHOICES, dtype=torch.int64),
            slots=torch.from_numpy(np.concatenate([self.slots(length, length + num_rows), np.arange(num_padded)])),
            sequence_of=torch.zeros(padded, dtype=torch.int32),
            lengths=torch.tensor([length], dtype=torch.int32),
            row_starts=torch.tensor([0, padded], dtype=torch.int32),
            block_table=torch.tensor([self.cache.pages], dtype=torch.int32),
            visibility=torch.from_numpy(visibility),
        )

    def slots(self, first: int, last: int) -> np.ndarray:
        return self.cache.slots(np.arange(first, last))

    def run(self, forward: FusedForward, tree: TokenTree, num_logits: int, num_padded: int = 0) -> torch.Tensor:
        """Logits [num_logits, V] of a tree's last rows."""
        given = self.given(tree, num_padded)
        return forward(given, num_logits + num_padded)[:num_logits]
