"""Recurrent layers in the native forward: the logits of the eager ones, and rows that do not depend on the others."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.cpu.forward import NativeForward
from lp.model.fast_forward import SequenceRows
from lp.tree import chain
from tests.lp.model.cpu.shapes import RECURRENT_SHAPES
from tests.lp.model.cpu.test_native_forward import relative_error, with_branches
from tests.lp.model.cpu.test_packed_forward import threads
from tests.lp.test_tree import random_tree
from tests.models import HYBRIDS, VOCAB_SIZE
from tests.slow import slow_except

LoadBoth = Callable[[str, str], tuple[CausalModel, NativeForward]]
# A convolution, Gated DeltaNet, Mamba-2 with attention, lightning attention, and selective scans.
NAMES = ("lfm2", "qwen3_5", "bamba", "odd_lightning", "odd_scan")


def random_text(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(2, VOCAB_SIZE, length).tolist()


@pytest.mark.parametrize(
    ("name", "dtype", "allowed"),
    slow_except(
        [(name, "float32", 1e-5) for name in [*HYBRIDS, *RECURRENT_SHAPES]]
        + [(name, "bfloat16", 0.1) for name in NAMES],
        ("lfm2", "float32", 1e-5),
        ("odd_delta_net", "float32", 1e-5),
    ),
)
def test_trees_get_the_logits_of_the_eager_layers(name: str, dtype: str, allowed: float, load_both: LoadBoth) -> None:
    model, native = load_both(name, dtype)
    cache, rng, errors = model.make_cache(1), np.random.default_rng(0), list[float]()
    steps = (90, 1), (0, 1), (0, 2), (0, 9), (300, 20), (0, 40), (3, 64), (0, 1)
    for step, (num_before, num_rows) in enumerate(steps):
        tree = random_tree(rng, num_rows).under(random_text(rng, num_before))
        rows = SequenceRows(tree, cache, num_rows)
        own = model.forward_eager([rows])[0]
        errors.append(relative_error(native([rows]), own))
        if step % 3 == 2:  # the native states are those that the eager layers go on from, and the reverse
            model.forward_eager([rows])
        cache.keep(tree.path(len(tree) - 1))
    assert median(errors) < allowed, errors
    assert max(errors) < 10 * allowed, errors  # the least that a forward may differ when a model is loaded


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except([(name, dtype) for name in NAMES for dtype in ("float32", "bfloat16")], ("qwen3_5", "bfloat16")),
)
def test_a_row_does_not_depend_on_the_others(name: str, dtype: str, load_both: LoadBoth) -> None:
    """To the last bit: a text read token by token, in chunks, or as kept paths of trees gets the same logits."""
    model, native = load_both(name, dtype)
    text = random_text(np.random.default_rng(1), 300)
    expected = read(model, native, text, [1] * len(text))
    for chunks in ([300], [7, 64, 229], [30, 1, 1, 258, 10]):
        assert torch.equal(read(model, native, text, chunks), expected), chunks
    for cut in (1, 64, 250):
        cache = model.make_cache(1)
        answer(native, cache, text[:cut], 1)
        for begin, end in ((cut, cut + 6), (cut + 6, cut + 7), (cut + 7, cut + 30)):
            tree, rows = with_branches(text[begin:end])
            cache.reserve(len(tree))
            found = native([SequenceRows(tree, cache, len(tree))])[rows]
            assert torch.equal(found, expected[begin:end]), (cut, begin)
            cache.keep(rows)


def read(model: CausalModel, native: NativeForward, text: list[int], chunks: list[int]) -> Tensor:
    """Logits [len(text), V] of a text of which chunks of these lengths are read, each but its last rows as a prompt."""
    cache, logits, done = model.make_cache(1), [], 0
    for length in chunks:
        logits.append(answer(native, cache, text[done : done + length], length))
        done += length
    return torch.cat(logits)


def answer(native: NativeForward, cache: KVCache, tokens: list[int], num_logits: int) -> Tensor:
    """The logits of the last of some tokens, which are kept."""
    cache.reserve(len(tokens))
    logits = native([SequenceRows(chain(tokens), cache, num_logits)])
    cache.keep(range(len(tokens)))
    return logits.clone()


@pytest.mark.parametrize("name", slow_except(NAMES, "lfm2"))
def test_each_sequence_gets_what_it_gets_alone(name: str, load_both: LoadBoth) -> None:
    model, native = load_both(name, "float32")
    rng = np.random.default_rng(3)
    given = []
    steps = (0, 5, 1, 1), (40, 0, 20, 20), (300, 0, 1, 1), (9, 70, 1, 0), (1, 3, 9, 9)
    for length, num_before, num_rows, num_logits in steps:
        cache = model.make_cache(1)
        if length:
            answer(native, cache, random_text(rng, length), 0)
        tree = random_tree(rng, num_rows).under(random_text(rng, num_before))
        given.append(SequenceRows(tree, cache, num_logits))
        cache.reserve(len(tree))
    with threads(1):
        alone = [native([rows]).clone() for rows in given]
    for number in (1, 2, 3):
        with threads(number):
            assert torch.equal(native(given), torch.cat(alone)), number
    # What each has left advances its own state.
    others = [rows.cache.fork() for rows in given]
    for rows, other in zip(given, others, strict=True):
        path = rows.tree.path(len(rows.tree) - 1)
        rows.cache.keep(path)
        answer(native, other, rows.tree.tokens[path].tolist(), 0)
        assert torch.equal(answer(native, rows.cache, [5], 1), answer(native, other, [5], 1))
