"""Runs Triton kernels on CPU tensors by Triton's interpreter, and lays out keys and values in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lp import gpu_kernels
from lp.model.gpu.fused.forward import FusedForward
from lp.model.gpu.fused.inputs import PAGE, Rows, Stores
from lp.tree import TokenTree
from tests.lp.model.gpu.fused.mended import mended


def start(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any
) -> None:
    """As gpu_kernels.start, on CPU tensors."""
    from triton.runtime.interpreter import InterpretedFunction

    with mended():
        InterpretedFunction(kernel.fn)[grid](*arguments, **constants)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all kernels interpreted, until the test ends; skips the test where Triton is missing."""
    if missing := gpu_kernels.missing_triton():
        pytest.skip(missing)
    monkeypatch.setattr(gpu_kernels, "start", start)


class Pages:
    """Keys and values of one sequence, in pages in any order. shapes: heads and head dimension of each layer."""

    def __init__(self, shapes: Sequence[tuple[int, int]], num_pages: int, dtype: torch.dtype = torch.float32):
        def empty() -> list[torch.Tensor]:
            return [torch.full((num_pages + 1, PAGE, *shape), float("nan"), dtype=dtype) for shape in shapes]

        self.stores = Stores(empty(), empty())
        for tensor in (*self.stores.keys, *self.stores.values):
            tensor[0] = 0  # a page of nobody
        self.table = torch.from_numpy(np.random.default_rng(0).permutation(num_pages) + 1).to(torch.int32)[None]
        self.length = 0

    def rows(self, tree: TokenTree, num_padded: int = 0) -> Rows:
        """The rows of a tree behind the cached prefix, and padding, whose keys go to places behind them."""
        num_rows = len(tree)
        padded = num_rows + num_padded
        visibility = np.eye(padded, dtype=bool)
        visibility[:num_rows, :num_rows] = tree.visibility
        tokens, depths = np.zeros(padded, np.int64), np.zeros(padded, np.int64)
        tokens[:num_rows], depths[:num_rows] = tree.tokens, tree.depths
        return Rows(
            torch.from_numpy(tokens),
            torch.from_numpy(depths + self.length),
            self._slots(torch.arange(padded) + self.length),
            torch.tensor([self.length], dtype=torch.int32),
            torch.tensor([0, padded], dtype=torch.int32),
            self.table,
            torch.from_numpy(visibility),
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Appends rows of the last step to the prefix."""
        source = self._slots(torch.tensor(list(rows)) + self.length)
        target = self._slots(torch.arange(len(rows)) + self.length)
        for tensor in (*self.stores.keys, *self.stores.values):
            flat = tensor.view(-1, *tensor.shape[2:])
            flat[target] = flat[source]
        self.length += len(rows)

    def run(self, forward: FusedForward, tree: TokenTree, num_logits: int, num_padded: int = 0) -> torch.Tensor:
        """Logits [num_logits, V] of a tree's last rows."""
        logits = forward(self.rows(tree, num_padded), self.stores, num_logits + num_padded)
        return logits[:num_logits]

    def _slots(self, positions: torch.Tensor) -> torch.Tensor:
        return self.table[0, positions // PAGE].long() * PAGE + positions % PAGE
