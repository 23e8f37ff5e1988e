"""A batch of steps of many sequences: each is answered as if it were alone, and none loses its memory to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lp import Engine, Sampling
from lp.kv_cache.cache import PAGE
from lp.kv_cache.contiguous import ContiguousMemory
from lp.model.causal import CausalModel
from lp.platform.library import python_alone
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling import top_k
from lp.tree import NO_ROWS, Answers, chain
from tests.lp.test_tree import random_tree
from tests.models import VOCAB_SIZE

GREEDY = Sampling.greedy()
SAMPLED = replace(GREEDY, temperature=0.9, seed=3)
# As many kinds as matter: greedy ones of two kinds, sampled, truncated, penalised, with log-probabilities.
SAMPLINGS = [
    GREEDY,
    GREEDY,
    SAMPLED,
    replace(GREEDY, repetition_penalty=1.3),
    replace(GREEDY, logprobs=2),
    GREEDY,
    replace(SAMPLED, top_k=5, seed=8),
    replace(GREEDY, logit_bias={7: 3.0}),
    GREEDY,
]


def sequences(rng: np.random.Generator) -> list[Sequence]:
    lengths = rng.integers(1, 90, len(SAMPLINGS)).tolist()
    texts = [rng.integers(2, VOCAB_SIZE, length).tolist() for length in lengths]
    return [Sequence(str(n), text, len(text), SAMPLINGS[n]) for n, text in enumerate(texts)]


def some_step(rng: np.random.Generator, sequence: Sequence) -> StepInput:
    """A tree under the last token, a single row, or a part of the sequence that is only fed."""
    kind, num_candidates = int(rng.integers(4)), int(rng.choice([0, 0, 3]))
    if kind == 0:
        return StepInput(sequence, NO_ROWS, int(rng.integers(0, len(sequence.tokens))))
    tree = chain([0]) if kind == 1 else random_tree(rng, int(rng.integers(1, 20)))
    tree.tokens[0] = sequence.tokens[-1]
    return StepInput.of(sequence, tree, num_candidates)


def run(runner: SingleDevice, steps: list[StepInput]) -> list[Answers]:
    runner.start(steps)
    return runner.finish()


def same(one: Answers, other: Answers, rounding: float = 1e-5) -> None:
    """rounding: by how much log-probabilities may differ."""
    for name in ("targets", "candidates", "logprobs", "top_tokens", "top_logprobs"):
        found, expected = getattr(one, name), getattr(other, name)
        assert (found is None) == (expected is None), name
        assert found is None or np.allclose(found, expected, rtol=0, atol=rounding), name


@pytest.fixture(params=["own", "native"])
def model(request: pytest.FixtureRequest, llama: Engine, checkpoint_folder: Callable[[str], Path]) -> CausalModel:
    if request.param == "own":
        return llama.checkpoint.model
    folder = str(checkpoint_folder("llama"))
    return Engine.from_pretrained(folder, device="cpu", compile="on", step_times="off").checkpoint.model


def test_batches_are_answered_as_each_sequence_alone(model: CausalModel) -> None:
    rng = np.random.default_rng(0)
    together, alone = SingleDevice(model, prefill_chunk=30), SingleDevice(model, prefill_chunk=30)
    texts = sequences(rng)
    for sequence in texts:
        together.open(sequence)
        alone.open(sequence)
    for _ in range(12):
        chosen = [sequence for sequence in rng.permutation(len(texts)).tolist() if rng.random() < 0.8]
        steps = [some_step(rng, texts[number]) for number in chosen]
        if not steps:
            continue
        for step, answers in zip(steps, run(together, steps), strict=True):
            (expected,) = run(alone, [step])
            same(answers, expected, 0.0 if model.fast else 1e-5)
            assert len(answers.targets) == len(step.tree)
            if len(step.tree):
                step.sequence.tokens.append(max(2, int(answers.targets[0])))
    for sequence in texts:
        together.close(sequence)
        alone.close(sequence)


def test_sequences_that_choose_alike_are_answered_by_one_call(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    real = top_k.best_tokens

    def counted(scores: torch.Tensor, num_tokens: int = 1) -> top_k.Best:
        rows.append(len(scores))
        return real(scores, num_tokens)

    monkeypatch.setattr("lp.sampling.drawn.best_tokens", counted)
    runner = SingleDevice(llama.checkpoint.model)
    steps = []
    for number in range(6):
        sequence = Sequence(str(number), [5, 6, 7 + number], 3, SAMPLED if number == 2 else GREEDY)
        runner.open(sequence)
        steps.append(StepInput.of(sequence, chain([7 + number, 8]), num_candidates=2 if number == 5 else 0))
    with python_alone():  # the library finds sampled tokens by a function of its own
        answers = run(runner, steps)
    assert sorted(rows) == [2, 2, 8], "four that are greedy, one that asks for candidates, one that is sampled"
    assert [len(one.targets) for one in answers] == [2] * 6


def test_a_batch_is_one_forward(llama: Engine) -> None:
    """Rows that are fed, single rows and trees, without any compiled code."""
    model, rows = llama.checkpoint.model, list[int]()
    handle = model.model.register_forward_pre_hook(
        lambda module, arguments, named: rows.append(named["input_ids"].numel()), with_kwargs=True
    )
    runner = SingleDevice(model)
    fed, row, tree = (Sequence(str(number), [5, 6, 7 + number], 3, GREEDY) for number in range(3))
    for sequence in (fed, row, tree):
        runner.open(sequence)
    run(runner, [StepInput(fed, NO_ROWS, 2), StepInput.of(row, chain([8])), StepInput.of(tree, chain([9, 10, 11]))])
    handle.remove()
    assert model.fast is None and rows == [2 + (2 + 1) + (2 + 3)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_long_prompt_does_not_evict_the_others_of_its_batch(
    order: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    """The long prompt is computed in parts, before the forward that all share."""
    model = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu", step_times="off").checkpoint.model
    model.memory = ContiguousMemory(model.num_layers, 3)
    runner, expected = SingleDevice(model, prefill_chunk=64), SingleDevice(model, prefill_chunk=64)
    short = Sequence("short", list(range(2, 40)), 38, GREEDY)
    idle = Sequence("idle", list(range(3, 40)), 37, GREEDY)
    long = Sequence("long", [2 + n % 40 for n in range(PAGE + 90)], PAGE + 90, GREEDY)
    for sequence in (idle, short):
        runner.open(sequence)
        run(runner, [StepInput(sequence, NO_ROWS, 30)])
    runner.open(long)
    runner.states["short"].keep_accepted(short.tokens)
    runner.states["short"].cache.reserve(PAGE + 1)  # more than it needs
    batch = [StepInput.of(short, chain([39])), StepInput.of(long, chain([long.tokens[-1], 4]))][::order]
    found = run(runner, batch)
    assert runner.states["idle"].cache.was_evicted, "else there was room for all"
    assert not runner.states["short"].cache.was_evicted and not runner.states["long"].cache.was_evicted
    model.memory = ContiguousMemory(model.num_layers)
    for step, answers in zip(batch, found, strict=True):
        expected.open(step.sequence)
        same(answers, run(expected, [step])[0])
