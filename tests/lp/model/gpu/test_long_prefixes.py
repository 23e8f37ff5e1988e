"""Steps after long prefixes run by graphs of their own, where attention has other tiles for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.steps.made_up_forward import on_no_gpu
from lp.kv_cache.arena import Arena
from lp.kv_cache.cache import LayerShape
from lp.model.fast_forward import SequenceRows
from lp.model.gpu import step_tensors
from lp.model.gpu.attention import Tile, choose_tile, tile_of
from lp.model.gpu.cuda_graphs import LONG_PREFIX, CapturedForward
from lp.model.gpu.prompts import PromptAttention
from lp.model.gpu.step_tensors import StepTensors
from lp.tree import chain
from tests.lp.model.gpu.test_attention import Shape

LARGE, SMALL = 227 * 1024, 99 * 1024


def test_tiles_after_a_long_prefix_are_those_that_were_the_fastest() -> None:
    """Measured on an H200 in bfloat16 (docs/log/kernels.md)."""
    assert choose_tile(64, 4, 128, 2, LARGE, is_long=True) == Tile(rows=32, queries=128, keys=128, warps=8, stages=2)
    assert choose_tile(64, 2, 256, 2, LARGE, is_long=True) == Tile(rows=32, queries=64, keys=16, warps=4, stages=3)
    for num_rows, groups, width, itemsize, memory in (
        (1, 4, 128, 2, LARGE), (16, 4, 128, 2, LARGE), (64, 1, 64, 2, LARGE), (64, 4, 128, 4, LARGE),
        (64, 4, 128, 2, SMALL), (64, 4, 128, 2, 0),
    ):  # fmt: skip
        short = choose_tile(num_rows, groups, width, itemsize, memory)
        assert choose_tile(num_rows, groups, width, itemsize, memory, is_long=True) == short


def test_a_window_makes_every_prefix_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lp.model.gpu.attention.shared_memory", lambda device: LARGE)
    keys = torch.empty(1, 256, 8, 128, dtype=torch.bfloat16)
    for window in (None, 4096):
        step = Shape(heads=8, groups=4, head_dim=128, window=window).step()
        differs = tile_of(step, 64, keys, is_long=True) != tile_of(step, 64, keys)
        assert differs == (window is None)


@dataclass
class Kernels:
    """Stands for a forward that a graph captures. ran: the rows of each run, and whether it was for long prefixes."""

    arena: Arena
    ran: list[tuple[int, bool]] = field(default_factory=list)
    is_invariant: bool = False
    incoming_width: int | None = None
    gives_logits: bool = True
    output_width: int = 1
    prompts: PromptAttention | None = None

    def __call__(
        self,
        given: StepTensors,
        answered: int | Tensor,
        before_attention: object = None,
        incoming: Tensor | None = None,
        out: Tensor | None = None,
        sequences: Sequence[SequenceRows] = (),
        is_long: bool = False,
    ) -> Tensor:
        self.ran.append((len(given.tokens), is_long))
        return torch.zeros(len(given.tokens), 1) if out is None else out

    def differs_after_long(self, num_rows: int) -> bool:
        return num_rows >= 32


def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
    """Replays by running again."""

    def replay() -> None:
        run()

    return replay, run()


def make(monkeypatch: pytest.MonkeyPatch, max_length: int) -> tuple[CapturedForward, Kernels]:
    arena = Arena({0: LayerShape(1, 8, 8)}, 1, 64, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(arena, "move_given", lambda *_: None)
    monkeypatch.setattr(step_tensors, "upload_into", lambda *_: None)
    kernels = Kernels(arena)
    with on_no_gpu():
        forward = CapturedForward(kernels, max_length, (1, 32, 64), capture)
    kernels.ran.clear()
    return forward, kernels


def rows_of(forward: CapturedForward, length: int, num_rows: int) -> SequenceRows:
    cache = forward._forward.arena.open(length + num_rows)
    cache.reserve(length + num_rows)
    cache.length = length
    return SequenceRows(chain(range(num_rows)), cache, num_rows)


def test_a_step_is_long_by_its_prefix_and_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, kernels = make(monkeypatch, 16384)
    for length, num_rows in ((LONG_PREFIX - 1, 40), (LONG_PREFIX, 40), (LONG_PREFIX, 1)):
        forward([rows_of(forward, length, num_rows)])
    assert kernels.ran == [(64, False), (64, True), (1, False)]
    kernels.ran.clear()
    forward([rows_of(forward, LONG_PREFIX, 1), *(rows_of(forward, 10, 1) for _ in range(39))])
    assert kernels.ran == [(64, False)], "many sequences of few rows"


def test_a_short_context_has_one_graph_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, _ = make(monkeypatch, LONG_PREFIX)
    assert all(one.replay_long is None for one in forward._captured.values())
    forward, _ = make(monkeypatch, LONG_PREFIX + 1)
    assert [rows for rows, one in forward._captured.items() if one.replay_long] == [64, 32]
