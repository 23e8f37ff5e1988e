"""The native forward gives the model's own logits, and each row's do not depend on the rows beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.kv_cache.contiguous import ContiguousCache
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu import build
from lp.model.cpu.forward import NativeForward, meetings
from lp.model.cpu.make import make_native
from lp.model.cpu.source import ATTENTION, FUNCTION, PRODUCT, RECURRENCE, SCAN, Instruction
from lp.model.fast_forward import SequenceRows
from lp.tree import TokenTree, TreeBuilder, chain
from tests.lp.model.cpu.shapes import SHAPES
from tests.lp.test_tree import random_tree
from tests.models import ARCHITECTURES, SLIDING_WINDOW, VOCAB_SIZE, WITH_PROGRAM
from tests.slow import slow_except

HALF = ["llama", "gemma2", "gpt2"]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / (expected - expected.mean()).norm()).item()


@pytest.mark.parametrize(
    ("name", "dtype", "allowed"),
    slow_except(
        [(name, "float32", 1e-5) for name in [*ARCHITECTURES, *WITH_PROGRAM, "odd", "latent", "scaled", "xielu"]]
        + [(name, "bfloat16", 0.05) for name in [*HALF, "gemma4", *SHAPES]]
        + [(name, "float16", 0.01) for name in HALF],
        ("llama", "float32", 1e-5),
        ("odd", "float32", 1e-5),
        ("latent", "float32", 1e-5),
        ("gemma4", "float32", 1e-5),
        ("gemma2", "bfloat16", 0.05),
        ("gpt2", "float16", 0.01),
    ),
)
def test_trees_get_the_models_own_logits(
    name: str, dtype: str, allowed: float, load_both: Callable[[str, str], tuple[CausalModel, NativeForward]]
) -> None:
    model, native = load_both(name, dtype)
    cache, of_native, rng = model.make_cache(1), make_cache(native), np.random.default_rng(0)
    for num_rows in (40, 1, 2, 9, SLIDING_WINDOW + 5, 64, 1, 300, 17):  # the caches grow on the way
        tree = random_tree(rng, num_rows)
        of_native.reserve(num_rows)
        for num_logits in {1, num_rows}:
            own = model.forward(tree, cache, num_logits)
            found = native([SequenceRows(tree, of_native, num_logits)])  # writes the same rows again
            assert relative_error(found, own) < allowed, num_rows
        for one in (cache, of_native):
            one.keep(tree.path(num_rows - 1))


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except(
        [("llama", "float32"), ("llama", "bfloat16"), ("llama", "float16"), ("mistral", "float32"),
         ("gemma2", "bfloat16"), ("odd", "float32"), ("latent", "float32"),
         *((name, "bfloat16") for name in SHAPES)],
        ("odd", "float32"), ("gemma2", "bfloat16"),
    ),
)  # fmt: skip
def test_a_row_does_not_depend_on_the_others(
    name: str, dtype: str, load_both: Callable[[str, str], tuple[CausalModel, NativeForward]]
) -> None:
    """To the last bit: a text read token by token, in chunks, or as paths of trees gets the same logits."""
    _, native = load_both(name, dtype)
    text = np.random.default_rng(1).integers(2, VOCAB_SIZE, 300).tolist()
    expected = read(native, text, [1] * len(text))
    for chunks in ([300], [7, 64, 229], [30, 1, 97, 1, 33, 138], [3] * 100):
        assert torch.equal(read(native, text, chunks), expected), chunks
    for cut in (1, 20, 64, 128, 150, 290):
        assert torch.equal(along_a_branch(native, text, cut), expected[cut:]), cut


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("windows", "bfloat16"),
        pytest.param("latent", "float32", marks=pytest.mark.slow),
    ],
)
def test_threads_do_not_change_a_bit(
    name: str, dtype: str, load_both: Callable[[str, str], tuple[CausalModel, NativeForward]]
) -> None:
    """Threads share the blocks of a head's keys where heads cannot be divided evenly among them."""
    _, native = load_both(name, dtype)
    text, before = [2 + n % (VOCAB_SIZE - 2) for n in range(420)], torch.get_num_threads()
    try:
        found = []
        for num_threads in (1, 2, 3, 5, 8):
            torch.set_num_threads(num_threads)
            found.append(read(native, text, [33, 1, 266, 1, 1, 118]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_threads_meet_where_a_stage_begins_and_before_their_room_is_used_anew() -> None:
    def run(*kinds_and_stages: tuple[int, int]) -> list[bool]:
        return list(meetings([Instruction(kind, 0, stage, False, ()) for kind, stage in kinds_and_stages]))

    assert run((PRODUCT, 1), (PRODUCT, 1), (FUNCTION, 2), (ATTENTION, 3)) == [True, False, True, True]
    assert run((SCAN, 1), (ATTENTION, 1), (PRODUCT, 1), (SCAN, 1)) == [True, False, False, True]
    assert run((ATTENTION, 1), (ATTENTION, 1), (RECURRENCE, 1)) == [True, True, True]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are generations of x86-64")
@pytest.mark.parametrize("dtype", slow_except(["float32", "bfloat16"], "bfloat16"))
@pytest.mark.parametrize("processor", slow_except(["x86-64", "x86-64-v3", "x86-64-v4"], "x86-64-v3"))
def test_kernels_for_other_processors(
    processor: str, dtype: str, checkpoint_folder: Callable[[str], Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without vectors of eight, with AVX2 (as AMD Zen 2 and 3), and with AVX-512 but no bfloat16."""
    if processor == "x86-64-v4" and not torch.cpu._is_avx512_supported():
        pytest.skip("this processor has no AVX-512")
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in build.FLAGS]
    monkeypatch.setattr(build, "FLAGS", tuple(flags))
    model = load(ModelSettings(str(checkpoint_folder("llama")), dtype, "cpu", compile=CompileMode.off)).model
    native, cache, rng = make_native(model, kept), model.make_cache(1), np.random.default_rng(0)
    for num_rows in (40, 1, 9, 70, 17):
        tree = random_tree(rng, num_rows)
        own = model.forward(tree, cache, num_rows)
        found = native([SequenceRows(tree, cache, num_rows)])
        assert relative_error(found, own) < (1e-5 if dtype == "float32" else 0.05)
        cache.keep(tree.path(num_rows - 1))
    text = rng.integers(2, VOCAB_SIZE, 70).tolist()
    assert torch.equal(read(native, text, [70]), read(native, text, [1] * 3 + [20, 47]))


def read(native: NativeForward, text: list[int], chunks: list[int]) -> Tensor:
    """Logits [len(text), V] of a text that is read in chunks of these lengths."""
    cache, logits, done = make_cache(native), [], 0
    for length in chunks:
        cache.reserve(length)
        logits.append(native([SequenceRows(chain(text[done : done + length]), cache, length)]))
        cache.keep(range(length))
        done += length
    return torch.cat(logits)


def along_a_branch(native: NativeForward, text: list[int], cut: int) -> Tensor:
    """Logits of text[cut:], as one branch of a tree among others, after text[:cut]."""
    cache = make_cache(native)
    cache.reserve(cut)
    native([SequenceRows(chain(text[:cut]), cache, 1)])
    cache.keep(range(cut))
    tree, rows = with_branches(text[cut:])
    cache.reserve(len(tree))
    return native([SequenceRows(tree, cache, len(tree))])[rows]


def make_cache(native: NativeForward) -> ContiguousCache:
    return ContiguousCache(native.num_layers, 1)


def with_branches(path: list[int]) -> tuple[TokenTree, list[int]]:
    """A tree that holds a path with a wrong token beside each of its own, and the rows of the path."""
    builder, rows = TreeBuilder(path[0]), [0]
    for token in path[1:]:
        builder.add((token + 1) % VOCAB_SIZE, rows[-1])
        rows.append(builder.add(token, rows[-1]))
    return builder.build(), rows


def test_logits_that_are_held_are_not_overwritten(
    load_both: Callable[[str, str], tuple[CausalModel, NativeForward]],
) -> None:
    """Memory of logits is used again only when nobody holds them, not even a row of them."""
    model, native = load_both("llama", "float32")
    cache, tree = model.make_cache(1), chain([3, 4, 5])
    first = native([SequenceRows(tree, cache, 3)])
    row, copy, address = first[1], first[1].clone(), first.data_ptr()
    del first
    other = native([SequenceRows(chain([9, 8, 7]), cache, 3)])
    assert other.data_ptr() != address and torch.equal(row, copy)
    address = other.data_ptr()
    del other
    assert native([SequenceRows(tree, cache, 3)]).data_ptr() == address
