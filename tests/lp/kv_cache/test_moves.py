"""Tokens copied from slots to slots by the kernel, interpreted, are those of one gather and one scatter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lp.kv_cache.cache import PAGE
from lp.kv_cache.moves import BLOCK, MOST_MOVES, move, move_by_kernel, move_given
from tests.lp.model.gpu.interpreter import interpret

# Of one sequence, whose targets are sources of earlier moves, and of another one behind it.
MOVES = np.array([[11, 12, 14, 18, 300, 302], [10, 11, 12, 13, 298, 299]])


@pytest.mark.parametrize("num_moves", [0, 1, 4, 6])
@pytest.mark.parametrize("width", [4, BLOCK + 8])
def test_the_kernel_moves_as_a_gather_and_a_scatter_do(
    width: int, num_moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    random = torch.Generator().manual_seed(0)
    stores = [torch.randn(layers, 2, PAGE, 2, width // 2, generator=random) for layers in (4, 1)]
    by_kernel, given, expected = ([store.clone() for store in stores] for _ in range(3))
    moves = np.zeros((2, MOST_MOVES), np.int64)
    moves[:, :num_moves] = MOVES[:, :num_moves]
    on_device = torch.from_numpy(moves), torch.tensor([0, num_moves])
    move_by_kernel(by_kernel, *on_device)
    move_given(given, *on_device)
    move(expected, MOVES[:, :num_moves])
    for store in range(2):
        assert torch.equal(by_kernel[store], expected[store]) and torch.equal(given[store], expected[store])
