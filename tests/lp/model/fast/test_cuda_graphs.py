"""The forward's graphs: ladder, padding and caches. In place of a GPU's replay the function is run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lp import Engine, Lookahead, Sampling
from lp.model.attention import MaskKey
from lp.model.checkpoint import ModelSettings, load
from lp.model.fast.choose import CompileMode
from lp.model.fast.cuda_graphs import MOST_CACHES, CapturedForward
from lp.model.fast.on_tensors import OnTensors
from lp.model.fast.traced import TracedForward
from lp.single_device import SingleDevice
from tests.lp.test_lossless import make_prompt
from tests.lp.test_tree import random_tree

LADDER = (1, 2, 4, 8, 32)


class Recorder:
    """Stands for the capture on a GPU: a replay runs the function again."""

    def __init__(self) -> None:
        self.num_captured = 0

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.num_captured += 1
        result = run()

        def replay() -> None:
            result.copy_(run())

        return replay, result


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def captured(checkpoint_folder: Callable[[str], Path], recorder: Recorder) -> SingleDevice:
    """A runner on a tiny Llama with graphs."""
    model = load(ModelSettings(str(checkpoint_folder("llama")), device="cpu", compile=CompileMode.off)).model
    mask_keys: list[MaskKey] = [(None, 2)]
    traced = TracedForward(model.model, model.attention_kind, mask_keys)
    model.fast = OnTensors(model, CapturedForward(traced, mask_keys, LADDER, recorder.capture))
    return SingleDevice(model)


def test_padded_trees_get_the_models_own_logits(captured: SingleDevice) -> None:
    model = captured.model
    fast, cache, rng = model.fast, model.make_cache(1), np.random.default_rng(0)
    for num_rows in (5, 1, 3, 7, 32, 33, 2, 9):
        tree = random_tree(rng, num_rows)
        for num_logits in {1, num_rows}:
            model.fast = None
            own = model.forward(tree, cache, num_logits)
            model.fast = fast
            torch.testing.assert_close(model.forward(tree, cache, num_logits), own, rtol=1e-3, atol=1e-4)
        cache.keep(tree.path(num_rows - 1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_the_same_as_without_graphs(
    temperature: float, captured: SingleDevice, llama: Engine, recorder: Recorder
) -> None:
    engine, sampling = Engine(llama.checkpoint, captured), Sampling(temperature=temperature, seed=3)
    for prompt in (make_prompt(5), make_prompt(70)):  # the second takes over the first one's cache
        found, expected = (e.generate(prompt, decode=Lookahead(3, 4, 3), sampling=sampling) for e in (engine, llama))
        assert found.token_ids == expected.token_ids
    assert recorder.num_captured <= len(LADDER)


def test_a_cache_that_grows_gets_new_graphs_and_old_ones_are_dropped(
    captured: SingleDevice, recorder: Recorder
) -> None:
    model, rng = captured.model, np.random.default_rng(0)
    assert model.fast is not None
    caches = [model.make_cache(1) for _ in range(MOST_CACHES + 1)]
    for cache in caches:
        tree = random_tree(rng, 3)
        for _ in range(3):
            model.forward(tree, cache, 3)
    assert recorder.num_captured == len(caches)
    model.forward(random_tree(rng, 3), caches[-1], 3)
    assert recorder.num_captured == len(caches)
    model.forward(random_tree(rng, 3), caches[0], 3)
    assert recorder.num_captured == len(caches) + 1
    caches[0].keep(range(3))
    caches[0].reserve(caches[0].capacity)
    model.forward(random_tree(rng, 3), caches[0], 3)
    assert recorder.num_captured == len(caches) + 2
