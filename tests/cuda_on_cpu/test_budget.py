"""The launch budget: what one step of a Llama of 32 layers asks of a GPU must not grow beyond what is written down.

Kernels are counted as torch dispatches them; a few operators count as more than one (tests/cuda_on_cpu/operators.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lp import Sampling
from lp.kv_cache.arena import Arena
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode
from lp.model.gpu import cuda_graphs
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.make import make_fused
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import TokenTree, TreeBuilder
from tests.cuda_on_cpu import triton_kernels
from tests.cuda_on_cpu.cuda_api import CUDAGraph
from tests.cuda_on_cpu.launches import Launches, observed
from tests.cuda_on_cpu.models import load_on_gpu
from tests.lp.model.gpu import interpreter
from tests.models import save_checkpoint
from tests.slow import slow_except

LAYERS, ROWS, CANDIDATES = 32, 64, 8
# Sequences of a packed step.
SEQUENCES = 16
# Kernels in the graph: of each layer, products and attention included, and beside the layers; without Triton.
IN_A_LAYER, BESIDE_LAYERS = 57, 26
# With Triton, by rows. In a layer: 4 products, 4 fused stages, and attention, whose last program merges the shares of a
# split prefix.
FUSED = {1: (9, 4), 64: (9, 4)}
# With model.invariant=on: attention is never split, and one kernel more lays the rows' paths.
INVARIANT = {1: (9, 5), 64: (9, 5)}
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, seed=1),
    "temperature": Sampling(temperature=0.8, top_k=0, top_p=1.0, seed=1),
    "top-k and top-p": Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=1),
    "presence penalty": Sampling(temperature=0.0, presence_penalty=0.5, seed=1),
    "penalties and top-p": Sampling(temperature=0.8, top_k=20, top_p=0.9, presence_penalty=0.5, seed=1),
    "log-probabilities": Sampling(temperature=0.0, logprobs=5, seed=1),
    "n-grams": Sampling(temperature=0.0, no_repeat_ngram=3, seed=1),
}
# In the graph that chooses from truncated distributions; the other one has two kernels.
CHOOSING = 4
# Outside the graphs, by sampling: kernels, copies to the device, copies to the host, and how often the host waits.
# The aim is 30 kernels, one copy each way, and one wait. First without Triton, then with it: penalties alone need
# another copy, of the tokens that they touch, and top-p keeps the scores of rows that it may leave undecided.
OUTSIDE = {
    "greedy": (17, 1, 1, 1),
    "temperature": (52, 3, 1, 1),
    "top-k and top-p": (189, 6, 2, 2),
    "presence penalty": (28, 2, 1, 1),
    "penalties and top-p": (200, 7, 2, 2),
    "log-probabilities": (34, 1, 1, 1),
    "n-grams": (28, 2, 1, 1),
}
OUTSIDE_FUSED = {
    "greedy": (0, 1, 1, 1),
    "temperature": (0, 1, 1, 1),
    "top-k and top-p": (1, 1, 1, 1),
    "presence penalty": (1, 2, 1, 1),
    "penalties and top-p": (2, 2, 1, 1),
    "log-probabilities": (17, 1, 1, 1),
    "n-grams": (1, 2, 1, 1),
}
# A step of 16 sequences that have all of these settings in turn.
MIXED, MIXED_FUSED = (214, 5, 1, 1), (20, 2, 1, 1)


def save(folder: Path, num_layers: int) -> Path:
    sizes: Any = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    return save_checkpoint(folder, num_hidden_layers=num_layers, vocab_size=4000, **sizes)


@pytest.fixture(scope="session")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("deep"), LAYERS)


@pytest.fixture(scope="session")
def flat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("flat"), 1)


@pytest.fixture(autouse=True)
def two_rungs(few_rungs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder: Any = ((1, ROWS), cuda_graphs.capture_on_gpu)
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ladder)


def make_tree(root: int, num_rows: int, length: int) -> TokenTree:
    """Chains of this length under the root."""
    builder = TreeBuilder(root)
    for row in range(1, num_rows):
        builder.add(row % 290 + 2, row - 1 if row % length != 1 else 0)
    return builder.build()


def outside(model: CausalModel, samplings: list[Sampling]) -> tuple[int, ...]:
    """What a step of sequences with these settings asks for outside its graph. They share ROWS rows."""
    length = 7 if len(samplings) == 1 else 2
    runner, texts = SingleDevice(model), []
    for number, sampling in enumerate(samplings):
        settings = sampling.changed({"repetition_penalty": 1.0, "min_p": 0.0, "seed": number})
        texts.append(Sequence(str(number), [3, 7, 9, 5], 4, settings))
        runner.open(texts[-1])
    for number in range(3):  # the third has its graph, and keeps accepted rows that are not the first
        trees = [make_tree(sequence.tokens[-1], ROWS // len(samplings), length) for sequence in texts]
        steps = [StepInput.of(one, tree, CANDIDATES) for one, tree in zip(texts, trees, strict=True)]
        with observed(Launches()) as counted:
            runner.start(steps)
            runner.finish()
        for sequence, tree in zip(texts, trees, strict=True):
            sequence.tokens += [*tree.tokens[length + 1 : length + 3].tolist(), 11 + number]
    for sequence in texts:
        runner.close(sequence)
    return counted.kernels, counted.to_device, counted.to_host, counted.blocking + counted.waits


def of_each(
    model: CausalModel, num_sequences: int = 1, names: Iterable[str] = tuple(SAMPLINGS)
) -> dict[str, tuple[int, ...]]:
    """What steps of so many sequences ask for that all have the same settings, by their names."""
    return {name: outside(model, [SAMPLINGS[name]] * num_sequences) for name in names}


def of_mixed(model: CausalModel, num_sequences: int) -> tuple[int, ...]:
    """What steps of so many sequences ask for, which have all settings in turn."""
    return outside(model, (list(SAMPLINGS.values()) * num_sequences)[:num_sequences])


@pytest.mark.slow
def test_a_step_asks_for_no_more_than_is_written_down(deep_folder: Path, flat_folder: Path, cuda: None) -> None:
    """Nothing outside a graph is done for each layer, so one layer says how samplings differ."""
    flat = load_on_gpu(flat_folder)
    assert of_each(flat) == OUTSIDE, "more than was written down, or less: then write that down"
    assert of_mixed(flat, SEQUENCES) == MIXED
    assert of_each(load_on_gpu(deep_folder), names=["greedy"]) == {"greedy": OUTSIDE["greedy"]}
    assert divmod(CUDAGraph.last.num_kernels, LAYERS) == (IN_A_LAYER, BESIDE_LAYERS)


@pytest.mark.slow
def test_kernels_of_our_own_choose_tokens(flat_folder: Path, triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward is still that without Triton: its graph is counted above."""

    def zeros(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
        for one in arguments:
            if isinstance(one, Tensor) and one.dtype == torch.int64:
                one.fill_(1)  # tokens that exist, of rows that are decided

    model = load_on_gpu(flat_folder)
    monkeypatch.setattr(interpreter, "start", zeros)
    assert of_each(model) == OUTSIDE_FUSED
    assert CUDAGraph.last.num_kernels == CHOOSING
    assert of_each(model, SEQUENCES) == OUTSIDE_FUSED, "more sequences are no more launches and copies"
    assert of_mixed(model, SEQUENCES) == MIXED_FUSED


@pytest.mark.parametrize(("is_invariant", "expected"), slow_except([(False, FUSED), (True, INVARIANT)]))
def test_a_fused_step_has_few_kernels(
    is_invariant: bool,
    expected: dict[int, tuple[int, int]],
    deep_folder: Path,
    triton: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    triton_kernels.count_only(monkeypatch)
    model = load_on_gpu(deep_folder, CompileMode.off)
    assert isinstance(model.memory, Arena)
    forward = make_fused(model, model.memory, is_invariant)
    for num_rows, kernels in expected.items():
        CapturedForward(forward, model.max_length, (num_rows,), cuda_graphs.capture_on_gpu)
        assert divmod(CUDAGraph.last.num_kernels, LAYERS) == kernels
