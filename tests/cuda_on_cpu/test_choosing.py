"""Tokens that graphs choose behind the forward, on the emulated GPU, against the reference choosers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from lp import Sampling
from lp.model.causal import CausalModel
from lp.model.fast_forward import Choosing, SequenceRows
from lp.model.gpu import cuda_graphs
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling import batch as batch_module
from lp.sampling import sampler
from lp.sampling.choosers import FullVocabulary, Shortlist
from lp.sampling.rows import Rows
from lp.tree import NO_ROWS, TokenTree
from tests.cuda_on_cpu.cuda_api import CUDAGraph
from tests.cuda_on_cpu.models import load_on_gpu
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

TOP_P = {"temperature": 0.9, "top_p": 0.6}
PENALTIES = {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "logit_bias": {7: 2.0}, "min_new_tokens": 3}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k, top-p and min-p": TOP_P | {"top_k": 30, "min_p": 0.01},
    "a flat distribution, of which some rows stay undecided": {"temperature": 4.0, "top_p": 0.8},
    "penalties": PENALTIES,
    "penalties and top-p": TOP_P | PENALTIES,
    "log-probabilities": TOP_P | {"logprobs": 2},
    "log-probabilities with penalties, some of rows that stay undecided": PENALTIES
    | {"temperature": 4.0, "top_p": 0.8, "logprobs": 2},
    "n-grams": {"no_repeat_ngram": 2},
}


@pytest.fixture
def model(folders: dict[str, Path], cuda: None, monkeypatch: pytest.MonkeyPatch) -> CausalModel:
    """Its forward is the one without Triton, which no interpreter slows down."""
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((2, 16), cuda_graphs.capture_on_gpu))
    return load_on_gpu(folders["llama"])


def answers(model: CausalModel, sampling: Sampling, num_candidates: int) -> list[np.ndarray]:
    """Packed answers of a few steps, in each of which another sequence's step is under way."""
    runner = SingleDevice(model)
    sequences = [Sequence(name, [3, 7, 9, 5], 3, sampling) for name in ("one", "two")]
    for sequence in sequences:
        runner.open(sequence)
    found: list[np.ndarray] = []
    for number, num_rows in enumerate((1, 6, 8)):
        trees = [tree_under(sequence.tokens[-1], num_rows, number) for sequence in sequences]
        pairs = zip(sequences, trees, strict=True)
        runner.start([StepInput.of(sequence, tree, num_candidates) for sequence, tree in pairs])
        found += [one.pack() for one in runner.finish()]
        for sequence, tree in zip(sequences, trees, strict=True):
            last = len(tree) - 1
            sequence.tokens += [*(tree.tokens[row] for row in tree.path(last)[1:]), 11 + number]
    for sequence in sequences:
        runner.close(sequence)
    return found


def tree_under(root: int, num_rows: int, seed: int) -> TokenTree:
    tree = random_tree(np.random.default_rng(seed), num_rows)
    tree.tokens[0] = root
    return tree


@pytest.mark.parametrize(
    ("name", "num_candidates"),
    slow_except(
        [*((name, 3) for name in SAMPLINGS), ("greedy", 0)],
    ),
)
def test_answers_are_those_of_the_reference(
    name: str, num_candidates: int, model: CausalModel, triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling.greedy().changed({"seed": 3, **SAMPLINGS[name]})
    found = answers(model, sampling, num_candidates)
    captured = CUDAGraph.num_captured
    for module in (sampler, batch_module):
        monkeypatch.setattr(module, "can_fuse", lambda *_: False)
    expected = answers(model, sampling, num_candidates)
    assert CUDAGraph.num_captured == captured, "nothing is captured twice"
    # Without noise some scores are equal, and top-k promises no order among equals behind the first.
    columns = slice(None if sampling.temperature else 1)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one[:, columns], other[:, columns])


# Steps of the test that mixes sequences.
NUM_STEPS = 2


class Mixed:
    """Sequences of all kinds of sampling in one step, and one that is only fed."""

    NAMES = tuple(SAMPLINGS)

    def __init__(self, model: CausalModel):
        self.runner = SingleDevice(model)
        settings = {name: Sampling.greedy().changed({"seed": 3, **SAMPLINGS[name]}) for name in self.NAMES}
        self.sequences = [Sequence(name, [3, 7, 9, 5], 3, sampling) for name, sampling in settings.items()]
        self.fed = Sequence("only fed", list(range(2, 40)), 38, Sampling.greedy().changed({"seed": 1}))
        for sequence in (*self.sequences, self.fed):
            self.runner.open(sequence)

    def answers(self, are_together: bool) -> list[np.ndarray]:
        """Packed answers of a few steps, either of all sequences together or of each by itself."""
        found: list[np.ndarray] = []
        for number in range(NUM_STEPS):
            steps = [
                StepInput.of(one, tree_under(one.tokens[-1], 1 + (place + number) % 3, place), 3)
                for place, one in enumerate(self.sequences)
            ]
            steps.insert(1, StepInput(self.fed, NO_ROWS, 2 * number + 2))
            for batch in [steps] if are_together else [[step] for step in steps]:
                self.runner.start(batch)
                found += [one.pack() for one, step in zip(self.runner.finish(), batch, strict=True) if len(step.tree)]
            for step in steps:
                if len(step.tree):
                    path = step.tree.path(len(step.tree) - 1)
                    step.sequence.tokens += [*(step.tree.tokens[row] for row in path[1:]), 11 + number]
        return found


@pytest.mark.parametrize(
    "ladder",
    [
        pytest.param((4, 16), id="by graphs"),  # but for the first step, which has more rows
        pytest.param((2,), id="without graphs of the forward"),
    ],
)
@pytest.mark.slow
def test_sequences_of_all_kinds_share_a_step(
    ladder: tuple[int, ...], folders: dict[str, Path], triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence gets the answers that it gets alone. Other choosers than the graphs decide what a graph cannot."""
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", (ladder, cuda_graphs.capture_on_gpu))
    model = load_on_gpu(folders["llama"])
    mixed, alone = Mixed(model), Mixed(model)
    decided: list[int] = []
    with monkeypatch.context() as patch:
        for chooser in (FullVocabulary, Shortlist):
            patch.setattr(chooser, "__call__", counting(chooser.__call__, decided))
        found = mixed.answers(are_together=True)
    num_rows = sum(len(one) for one in found if len(one))
    assert 0 < sum(decided) < num_rows / 4
    for one, other in zip(found, alone.answers(are_together=False), strict=True):
        assert np.array_equal(one[:, :1], other[:, :1])


def counting(choose: Any, rows: list[int]) -> Any:
    """A chooser's function that notes the numbers of rows."""

    def counted(self: Any, given: Rows) -> Tensor:
        rows.append(len(given.scores))
        return choose(self, given)

    return counted


@pytest.mark.slow
def test_nothing_is_captured_while_a_request_runs(
    model: CausalModel, triton: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lookahead"):
        SingleDevice(model)
    (said,) = [one.message for one in caplog.records if "choose tokens" in one.message]
    assert "GB" in said
    captured = CUDAGraph.num_captured
    for name in ("greedy", "penalties and top-p"):
        answers(model, Sampling.greedy().changed({"seed": 3, **SAMPLINGS[name]}), 3)
    assert CUDAGraph.num_captured == captured


def test_what_cannot_be_captured_is_chosen_without_a_graph(
    model: CausalModel, triton: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "lookahead"):
        patch.setattr(cuda_graphs, "capture_on_gpu", fail)
        SingleDevice(model)
    said = [one.message for one in caplog.records if "without CUDA graphs" in one.message]
    assert len(said) == 2 and all("CUDA out of memory" in one for one in said)
    cache, choices = model.make_cache(), np.zeros((3, 4), np.int64)
    assert model.compute([SequenceRows(tree_under(1, 3, 0), cache, 3)], [Choosing("whole", choices)]) is None
