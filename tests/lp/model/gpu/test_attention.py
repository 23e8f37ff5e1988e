"""Tree attention over pages, interpreted, against dense attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.cache import PAGE, LayerShape
from lp.model.gpu import attention
from lp.model.gpu.attention import (
    MOST_SPLIT_TILES,
    Tile,
    attend,
    attend_in_order,
    choose_tile,
    lay_paths,
    num_merged,
    num_splits,
    tile_of,
)
from lp.model.gpu.step_tensors import StepTensors
from lp.model.kernels import LayerAttention
from lp.model.program.steps import Attention, Constant, Operand, Value
from lp.platform import build as kernels
from lp.tree import TokenTree
from tests.lp.model.gpu import interpreter
from tests.lp.model.gpu.interpreter import Pages, interpret, run_backwards
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

LENGTHS = slow_except([0, 1, 255, 256, 257, 1000], 0, 257)


@dataclass(frozen=True)
class Shape:
    heads: int = 2
    groups: int = 1
    head_dim: int = 64
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    chunk: int | None = None
    value_dim: int | None = None  # None is head_dim
    has_sinks: bool = False

    def dims(self) -> tuple[int, int]:
        return self.head_dim, self.value_dim or self.head_dim

    def step(self) -> Attention:
        (key_dim, value_dim), num_queries = self.dims(), self.heads * self.groups
        how = LayerAttention(key_dim**-0.5, self.window, self.softcap, self.chunk)
        query = Operand(Value(num_queries * key_dim + 3), 3, (key_dim,))
        sizes = self.heads, self.groups, key_dim, value_dim
        sinks = Constant(self.sinks()) if self.has_sinks else None
        return Attention(Value(num_queries * value_dim), query, 0, how, *sizes, sinks)

    def sinks(self) -> Tensor:
        """Returns a number of its own for each query head."""
        return torch.linspace(-2, 3, self.heads * self.groups)


@dataclass(frozen=True)
class Case:
    """A step's attention: query [R, 3 + heads * D], the prefix's and the rows' keys and values [S, H, D]."""

    query: Tensor
    keys: Tensor
    values: Tensor
    pages: Pages
    given: StepTensors


def make_case(shape: Shape, tree: TokenTree, length: int, seed: int = 0) -> Case:
    random = torch.Generator().manual_seed(seed)
    num_rows, width = len(tree), shape.step().query.source.width  # pyright: ignore[reportAttributeAccessIssue]
    keys, values = (
        torch.randn(length + num_rows, shape.heads, dim, generator=random).to(shape.dtype) for dim in shape.dims()
    )
    query = torch.randn(num_rows, width, generator=random).to(shape.dtype)
    pages = Pages({0: LayerShape(shape.heads, *shape.dims())}, (length + num_rows) // PAGE + 2, shape.dtype)
    write(pages, keys, values)
    pages.cache.length = length
    return Case(query, keys, values, pages, pages.given(tree))


def write(pages: Pages, keys: Tensor, values: Tensor) -> None:
    """Writes a layer's keys and values [S, H, D] to their places."""
    slots = torch.from_numpy(pages.slots(0, len(keys)))
    for store, numbers in ((pages.arena.keys[0], keys), (pages.arena.values[0], values)):
        store.flatten(0, 1)[slots] = numbers


def dense(shape: Shape, case: Case, tree: TokenTree) -> Tensor:
    """[R, heads * D] by plain products in float32."""
    num_rows, length = len(tree), case.pages.cache.length
    query = case.query[:, 3:].float().view(num_rows, shape.heads, shape.groups, shape.head_dim)
    scores = torch.einsum("rhgd,shd->hgrs", query, case.keys.float()) * shape.head_dim**-0.5
    if shape.softcap:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    seen = torch.cat([torch.ones(num_rows, length, dtype=torch.bool), torch.from_numpy(tree.visibility)], dim=1)
    if shape.window is not None:
        positions = torch.from_numpy(tree.depths) + length
        seen &= positions[:, None] - torch.cat([torch.arange(length), positions])[None] < shape.window
    if shape.chunk is not None:
        positions = torch.from_numpy(tree.depths) + length
        keys = torch.cat([torch.arange(length), positions])
        seen &= positions[:, None] // shape.chunk == keys[None] // shape.chunk
    scores = scores.masked_fill(~seen, -torch.inf)
    if shape.has_sinks:
        sinks = shape.sinks().view(shape.heads, shape.groups, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    shares = scores.softmax(dim=-1)[..., : length + num_rows]
    return torch.einsum("hgrs,shd->rhgd", shares, case.values.float()).reshape(num_rows, -1)


def found(shape: Shape, case: Case, is_long: bool = False) -> Tensor:
    step = shape.step()
    arena = case.pages.arena
    out = torch.empty(len(case.given.tokens), step.out.width, dtype=shape.dtype)
    counters = torch.zeros(MOST_SPLIT_TILES, dtype=torch.int32)
    attend(step, case.query, arena.keys[0], arena.values[0], case.given, counters, out, is_long)
    assert not counters.any()
    return out.float()


def found_in_order(shape: Shape, case: Case) -> Tensor:
    step = shape.step()
    arena = case.pages.arena
    out = torch.empty(len(case.given.tokens), step.out.width, dtype=shape.dtype)
    attend_in_order(step, case.query, arena.keys[0], arena.values[0], case.given, lay_paths(case.given), out)
    return out.float()


SHAPES = [
    Shape(),
    Shape(groups=4),
    Shape(heads=1, groups=8, head_dim=128),
    Shape(heads=1, groups=3, head_dim=80),
    Shape(heads=1, groups=2, head_dim=256),
    Shape(groups=2, softcap=5.0),
    Shape(window=24),
    Shape(heads=1, window=300, softcap=8.0),
    Shape(groups=4, dtype=torch.bfloat16),
    Shape(heads=1, window=300, dtype=torch.float16),
    Shape(heads=1, groups=2, head_dim=24, value_dim=80, chunk=24),
    Shape(heads=1, head_dim=192, value_dim=128, dtype=torch.bfloat16),
    Shape(chunk=24),
    Shape(heads=1, groups=2, chunk=300),
    Shape(heads=1, groups=2, head_dim=512),
    Shape(groups=3, has_sinks=True),
    Shape(groups=2, window=24, dtype=torch.bfloat16, has_sinks=True),
]
QUICK = (
    Shape(groups=4),
    Shape(heads=1, window=300, softcap=8.0),
    Shape(heads=1, window=300, dtype=torch.float16),
    Shape(heads=1, groups=2, head_dim=24, value_dim=80, chunk=24),
    Shape(groups=3, has_sinks=True),
)


@pytest.mark.parametrize("shape", slow_except(SHAPES, *QUICK), ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_attention_is_that_of_dense_products(shape: Shape, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    tolerance = 2e-5 if shape.dtype == torch.float32 else 0.03
    for num_rows in (1, 19):
        tree = random_tree(np.random.default_rng(length), num_rows)
        case = make_case(shape, tree, length)
        expected = dense(shape, case, tree)
        for result in (found(shape, case), found_in_order(shape, case)):
            torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("is_long", "has_tensor_memory"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("groups", "head_dim"), [(4, 128), (2, 256)])
def test_tiles_of_a_large_gpu_give_the_same_attention(
    groups: int, head_dim: int, is_long: bool, has_tensor_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    monkeypatch.setattr(attention, "shared_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(attention, "has_tensor_memory", lambda device: has_tensor_memory)
    shape = Shape(heads=1, groups=groups, head_dim=head_dim, dtype=torch.bfloat16)
    tree = random_tree(np.random.default_rng(3), 70)
    case = make_case(shape, tree, 600)
    assert tile_of(shape.step(), 70, case.pages.arena.keys[0], is_long).keys == {
        (128, False): 128, (128, True): 128, (256, False): 32, (256, True): 16,
    }[head_dim, is_long]  # fmt: skip
    torch.testing.assert_close(found(shape, case, is_long), dense(shape, case, tree), atol=0.03, rtol=0.03)


def test_tiles_of_a_large_gpu_are_those_that_were_the_fastest() -> None:
    """Measured on an H200 in bfloat16 (docs/log/kernels.md). Smaller GPUs have less shared memory."""
    large, small = 227 * 1024, 99 * 1024
    assert choose_tile(1, 4, 128, 2, large) == Tile(rows=4, queries=16, keys=128, warps=4, stages=2)
    assert choose_tile(64, 4, 128, 2, large) == Tile(rows=8, queries=32, keys=128, warps=4, stages=2)
    assert choose_tile(16, 2, 256, 2, large) == Tile(rows=16, queries=32, keys=32, warps=4, stages=3)
    assert choose_tile(300, 4, 128, 2, large) == Tile(rows=32, queries=128, keys=128, warps=8, stages=2)
    assert choose_tile(64, 4, 128, 2, small).queries == choose_tile(64, 4, 128, 2, 0).queries == 128


def test_larger_tiles_have_half_as_many_numbers_for_a_thread_with_tensor_memory() -> None:
    """Each thread of a large tile has half as many numbers, so that less is spilled; smaller tiles are the same."""
    memory, half = 227 * 1024, Tile(rows=16, queries=64, keys=128, warps=8, stages=2)
    assert choose_tile(300, 4, 128, 2, memory, has_tensor_memory=True) == half
    assert choose_tile(64, 4, 128, 2, memory, is_long=True, has_tensor_memory=True) == half
    tile = choose_tile(64, 2, 256, 2, memory, is_long=True, has_tensor_memory=True)
    assert tile == Tile(rows=32, queries=64, keys=16, warps=8, stages=3)
    for num_rows, groups, width in ((1, 4, 128), (64, 4, 128), (16, 2, 256), (300, 4, 64)):
        assert choose_tile(num_rows, groups, width, 2, memory, has_tensor_memory=True) == choose_tile(
            num_rows, groups, width, 2, memory
        )


@pytest.mark.parametrize("shared_memory", [0, 99 * 1024, 163 * 1024, 227 * 1024])
def test_a_tile_holds_whole_rows(shared_memory: int) -> None:
    for groups, width, itemsize in ((1, 64, 2), (7, 128, 2), (71, 64, 2), (8, 256, 4), (3, 128, 4)):
        for num_rows in (1, 5, 64, 300):
            tile = choose_tile(num_rows, groups, width, itemsize, shared_memory)
            assert tile.rows >= 1 and tile.rows * groups <= tile.queries


def test_a_prefix_is_split_where_few_programs_would_run() -> None:
    assert num_splits(1, 4, Shape(heads=8, groups=4).step()) == 32
    assert num_splits(1, 16, Shape(heads=1).step()) == 64
    assert num_splits(64, 64, Shape(heads=32).step()) == 8
    assert num_splits(512, 64, Shape(heads=32).step()) == 1
    assert num_splits(1, 16, Shape(heads=8, window=24).step()) == 1


def test_the_last_program_merges_what_does_not_take_it_long() -> None:
    assert num_merged(4, splits=32, width=128, warps=8) == 4
    assert num_merged(8, splits=32, width=128, warps=8) == 4
    assert num_merged(16, splits=32, width=128, warps=8) == 0
    assert num_merged(3, splits=8, width=64, warps=4) == 4
    assert num_merged(1, splits=64, width=256, warps=8) == 1
    assert num_merged(128, splits=1, width=64, warps=8) == 0


MERGED = [
    (Shape(groups=3, head_dim=16, dtype=torch.bfloat16), 2),
    (Shape(groups=4), 5),
    (Shape(heads=1, head_dim=80), 7),
    (Shape(heads=4, head_dim=16, window=600, dtype=torch.float16), 20),
]


@pytest.mark.parametrize(("shape", "num_rows"), slow_except(MERGED, MERGED[0]), ids=str)
def test_the_last_program_merges_as_another_kernel_does(
    shape: Shape, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are equal to the last bit, whichever program is the last one."""
    interpret(monkeypatch)
    monkeypatch.setattr(attention, "PROGRAMS", 16)
    started: list[str] = []

    def start(kernel: Any, *arguments: Any, **options: Any) -> None:
        started.append(kernel.fn.__name__)
        interpreter.start(kernel, *arguments, **options)

    monkeypatch.setattr(kernels, "start", start)
    case = make_case(shape, random_tree(np.random.default_rng(1), num_rows), 700)
    merged = found(shape, case)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "MOST_MERGED", 0)
        assert torch.equal(found(shape, case), merged)
    assert started == ["attend", "attend", "merge"]
    run_backwards(monkeypatch)
    assert torch.equal(found(shape, case), merged)


def test_packed_sequences_see_their_own_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two sequences in one step get what each gets alone."""
    interpret(monkeypatch)
    shape = Shape(groups=2)
    trees = [random_tree(np.random.default_rng(seed), 7) for seed in (1, 2)]
    cases = [make_case(shape, tree, length, seed) for tree, length, seed in zip(trees, (300, 40), (1, 2), strict=True)]
    alone = [found(shape, case) for case in cases]
    first, second = (case.given for case in cases)
    behind = len(cases[0].pages.arena.keys[0])  # the second sequence's pages come behind those of the first
    pairs = [(one.pages.arena.keys[0], one.pages.arena.values[0]) for one in cases]
    keys, values = (torch.cat(both) for both in zip(*pairs, strict=True))
    table = torch.zeros(2, first.block_table.shape[1], dtype=torch.int32)
    table[0], table[1, : second.block_table.shape[1]] = first.block_table, second.block_table + behind
    packed = StepTensors(
        tokens=torch.cat([first.tokens, second.tokens]),
        positions=torch.cat([first.positions, second.positions]),
        slots=torch.cat([first.slots, second.slots + behind * PAGE]),
        moves=first.moves,
        move_starts=first.move_starts,
        choices=torch.cat([first.choices, second.choices], dim=1),
        sequence_of=torch.tensor([0] * 7 + [1] * 7, dtype=torch.int32),
        lengths=torch.cat([first.lengths, second.lengths]),
        row_starts=torch.tensor([0, 7, 14], dtype=torch.int32),
        block_table=table,
        visibility=torch.block_diag(first.visibility.int(), second.visibility.int()).bool(),
    )
    step = shape.step()
    out = torch.empty(14, step.out.width)
    counters = torch.zeros(MOST_SPLIT_TILES, dtype=torch.int32)
    attend(step, torch.cat([one.query for one in cases]), keys, values, packed, counters, out)
    torch.testing.assert_close(out, torch.cat(alone), atol=1e-6, rtol=1e-6)
