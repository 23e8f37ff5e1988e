"""Compiled forwards give the model's own logits; a failure to compile and a corrupt file do no harm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lp import Engine, Lookahead, Sampling
from lp.engine.engine import SingleDevice
from lp.model import compilation
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode, make_fast
from lp.platform.build import CannotBuild, Source, build
from lp.platform.build import load as load_library
from tests.lp.test_lossless import GREEDY, NUM_TOKENS, make_prompt
from tests.lp.test_tree import random_tree
from tests.models import SLIDING_WINDOW, VOCAB_SIZE
from tests.slow import slow_except

# llama has full attention; gemma2 has sliding windows in some layers, and a softcap; mixtral has experts.
ARCHITECTURES = slow_except(["llama", "gemma2", "mixtral"], "llama")


@pytest.fixture
def load_plain(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], CausalModel]:
    return lambda name: load(ModelSettings(str(checkpoint_folder(name)), device="cpu", compile=CompileMode.off)).model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_trees_get_the_models_own_logits(
    architecture: str, load_plain: Callable[[str], CausalModel], kept: Path
) -> None:
    model = load_plain(architecture)
    make_fast(model, CompileMode.on, kept)
    fast, cache = model.fast, model.make_cache(1)
    assert fast is not None
    rng = np.random.default_rng(0)
    for num_rows in (1, 2, 3, SLIDING_WINDOW + 5, 64, 1, 300, 5):  # the cache grows on the way
        tree = random_tree(rng, num_rows)
        for num_logits in {1, num_rows}:
            model.fast = None
            own = model.forward(tree, cache, num_logits)
            model.fast = fast
            torch.testing.assert_close(model.forward(tree, cache, num_logits), own, rtol=1e-3, atol=1e-4)
        cache.keep(tree.path(num_rows - 1))


def test_text_is_the_same_as_without_compiling(
    load_plain: Callable[[str], CausalModel], llama: Engine, kept: Path
) -> None:
    model = load_plain("llama")
    make_fast(model, CompileMode.on, kept)
    fast = Engine(llama.checkpoint, SingleDevice(model))
    for sampling in (GREEDY, Sampling(temperature=1.0, seed=1)):
        for length in (1, 70):
            prompt = make_prompt(length)
            results = [
                engine.generate(prompt, decode=Lookahead(5, 4, 5), sampling=sampling, max_new_tokens=NUM_TOKENS)
                for engine in (llama, fast)
            ]
            assert results[0].token_ids == results[1].token_ids


def test_a_model_is_compiled_once(
    load_plain: Callable[[str], CausalModel], kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_fast(load_plain("llama"), CompileMode.on, kept)
    with caplog.at_level(logging.INFO, "lookahead"):
        make_fast(load_plain("llama"), CompileMode.on, kept)
    assert "compiling" not in caplog.text


def test_a_corrupt_library_is_compiled_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Source("answer", "native", 'extern "C" int answer() { return 42; }', tmp_path, ())
    (library,) = build([source], tmp_path, "for a test")
    library.write_bytes(b"half of it")
    (again,) = build([source], tmp_path, "for a test")
    assert load_library(again).answer() == 42 and "is corrupt" in caplog.text


def fail(*arguments: object) -> None:
    raise CannotBuild("the compiler is out of order")


def test_a_failure_is_logged_and_does_no_harm(
    load_plain: Callable[[str], CausalModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(compilation, "make_native", fail)
    monkeypatch.setattr(compilation, "WORTHWHILE", 1)
    model = load_plain("llama")
    make_fast(model, CompileMode.auto, tmp_path)
    assert model.fast is None
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "the forward is not compiled: the compiler is out of order (model.compile=off does not try it)"
    ]
    with pytest.raises(ValueError, match=r"model\.compile=on: the compiler is out of order; use model\.compile=off"):
        make_fast(model, CompileMode.on, tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: softplus(x, beta=2.0), "softplus with 2.0"),
        (lambda x: x * x.sum(), "sum.default over all dimensions"),
    ],
    ids=["a number", "no dimension"],
)
def test_operations_that_have_no_formula_are_named(
    change: Callable[[Tensor], Tensor], reason: str, load_plain: Callable[[str], CausalModel], tmp_path: Path
) -> None:
    model = load_plain("llama")
    model.model.model.layers[0].mlp.forward = change
    with pytest.raises(ValueError, match=f"model.compile=on: .*{reason}"):
        make_fast(model, CompileMode.on, tmp_path)


def test_without_a_compiler_or_a_folder(
    load_plain: Callable[[str], CausalModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_plain("llama")
    with pytest.raises(ValueError, match="no folder to keep it in"):
        make_fast(model, CompileMode.on, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"no C\+\+ compiler; install g\+\+"):
        make_fast(model, CompileMode.on, tmp_path)


def test_small_models_are_left_as_they_are(load_plain: Callable[[str], CausalModel], tmp_path: Path) -> None:
    model = load_plain("llama")
    make_fast(model, CompileMode.auto, tmp_path)
    assert model.fast is None and not list(tmp_path.iterdir()) and model.vocab_size == VOCAB_SIZE
