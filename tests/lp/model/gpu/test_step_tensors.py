"""The library lays out a step for a GPU's graphs as the Python code does."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from lp.kv_cache.arena import Arena, LayerShape, PagedCache
from lp.kv_cache.cache import PAGE, pages_of
from lp.kv_cache.moves import MOST_MOVES
from lp.model.fast_forward import SequenceRows
from lp.model.gpu import step_tensors
from lp.model.gpu.step_tensors import ChoiceOfRows, StepBuffer
from lp.platform.library import library, python_alone
from lp.tree import chain
from tests.lp.test_tree import random_tree

CPU = torch.device("cpu")
MOST_TOKENS = 4 * PAGE


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy to the device is a copy."""
    monkeypatch.setattr(step_tensors, "upload_into", lambda values, target: target.copy_(torch.from_numpy(values)))


def sequences(rng: random.Random, count: int, most_rows: int) -> list[SequenceRows]:
    """Trees of sequences of an arena, with rows before them that are kept here and there."""
    arena = Arena({0: LayerShape(1, 1, 1)}, 1, 8 * count, torch.float32, CPU)
    found = []
    for number in range(count):
        cache, length = arena.open(), rng.choice([0, 1, 255, 256, 300, 600])
        num_rows = rng.randint(1, most_rows)
        tree = random_tree(np.random.default_rng(number), num_rows) if num_rows > 1 else chain([rng.randrange(99)])
        cache.reserve(length)
        cache.keep(range(length))
        if rng.random() < 0.7:
            cache.reserve(40)
            cache.keep(sorted(rng.sample(range(40), rng.randint(0, 12))))
        cache.reserve(num_rows)
        found.append(SequenceRows(tree, cache, num_rows))
    rng.shuffle(found)
    return found


def paged(one: SequenceRows) -> PagedCache:
    assert isinstance(one.cache, PagedCache)
    return one.cache


def parts(buffer: StepBuffer, given: list[SequenceRows], choices: list[ChoiceOfRows]) -> dict[str, Any]:
    """What a forward reads, without what means nothing."""
    buffer.fill(given, choices)
    return told(buffer, given)


def told(buffer: StepBuffer, given: list[SequenceRows]) -> dict[str, Any]:
    found = {field.name: getattr(buffer.on_device, field.name).numpy().copy() for field in fields(buffer.on_device)}
    found["block_table"] = [
        row[: len(paged(one).pages)].tolist() for row, one in zip(found["block_table"], given, strict=False)
    ]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_same_memory(seed: int) -> None:
    if library() is None:
        pytest.skip("there is no C++ compiler")
    rng = random.Random(seed)
    count = rng.choice([1, 1, 2, 5, 12])
    given = sequences(rng, count, rng.choice([1, 9, 30]))
    num_rows = sum(len(one.tree) for one in given)
    size, most = num_rows + rng.choice([0, 3, 40]), count + rng.choice([0, 2])
    kept = [paged(one).moves for one in given]
    choices = [ChoiceOfRows(1, slice(0, num_rows), np.arange(4 * num_rows).reshape(-1, 4))] if seed % 2 else []
    buffers = [StepBuffer(size, most, MOST_TOKENS, CPU) for _ in range(2)]
    before = given[: count // 2]  # another step, which must leave nothing behind
    if before and size - sum(len(one.tree) for one in before) <= PAGE:
        for buffer in buffers:
            buffer.fill(before)
    found = []
    for buffer in buffers:
        for one, moves in zip(given, kept, strict=True):
            paged(one).moves = moves
        if buffer is buffers[0]:
            found.append(parts(buffer, given, choices))
        else:
            with python_alone():
                found.append(parts(buffer, given, choices))
    for name, one in found[0].items():
        assert np.array_equal(one, found[1][name]) if isinstance(one, np.ndarray) else one == found[1][name], name
    assert not any(paged(one).num_moves for one in given)


def test_no_sequences() -> None:
    one, two = StepBuffer(9, 2, MOST_TOKENS, CPU), StepBuffer(9, 2, MOST_TOKENS, CPU)
    found = parts(one, [], [])
    with python_alone():
        expected = parts(two, [], [])
    assert all(np.array_equal(values, expected[name]) for name, values in found.items())


def test_more_moves_than_there_is_room_for() -> None:
    """The first ones are made at once, by the Python code, and the others by the step."""
    given = sequences(random.Random(0), 1, 4)
    tree, cache = given[0].tree, paged(given[0])
    rows = list(range(1, MOST_MOVES + 4))
    cache.apply_moves()
    cache.reserve(MOST_MOVES + 9)
    cache.keep(rows)
    cache.reserve(len(tree))
    buffer = StepBuffer(8, 1, MOST_TOKENS, CPU)
    buffer.fill(given)
    moves = buffer.on_device.moves
    assert cache.num_moves == 0 and buffer.on_device.move_starts.tolist() == [0, MOST_MOVES]
    assert moves[:, -1].tolist() == cache.slots(np.array([cache.length, cache.length - 1])).tolist()
    assert pages_of(cache.length) <= len(cache.pages)
