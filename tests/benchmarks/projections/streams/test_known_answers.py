"""Known texts are the model's greedy ones, and the answers under them are the model's, each computed once."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.projections.streams.known_answers import KnownAnswers
from lp import Autoregressive, Engine, Stopping
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling.settings import Sampling
from lp.tree import NO_ROWS, TreeBuilder

PROMPTS = [[(3 + 7 * i) % 41 + 2 for i in range(20)], [(5 + 3 * i) % 37 + 2 for i in range(30)]]


@pytest.fixture
def answers(llama: Engine) -> KnownAnswers:
    return KnownAnswers(llama.checkpoint, PROMPTS, 12, 4)


def branching_step(tokens: list[int], right: list[int]) -> StepInput:
    """A tree with two right drafts, and a wrong one under each row on their path."""
    builder = TreeBuilder(tokens[-1])
    parent = 0
    for token in right:
        builder.add((token + 1) % 40, parent)
        parent = builder.add(token, parent)
    builder.add(7, parent)
    sequence = Sequence("s", tokens, len(PROMPTS[0]), Sampling.greedy())
    return StepInput.of(sequence, builder.build(), 4)


def test_texts_are_greedy_ones(llama: Engine, answers: KnownAnswers) -> None:
    assert len(answers.texts) == 2
    for text, prompt in zip(answers.texts, PROMPTS, strict=True):
        alone = llama.generate(
            prompt, decode=Autoregressive(), sampling=Sampling.greedy(), stopping=Stopping(12, ignore_eos=True)
        )
        assert text.tokens == prompt + alone.token_ids and text.start == len(prompt)
        assert [int(known[0]) for known in text.answers if known is not None] == alone.token_ids


def test_a_text_that_ends_sooner_is_left_out(llama: Engine, answers: KnownAnswers) -> None:
    checkpoint = llama.checkpoint
    first, second = (text.tokens[text.start :] for text in answers.texts)
    ends = next(token for token in first if token not in second)
    found = KnownAnswers(_WithEos(checkpoint, [ends]), PROMPTS, 12, 4)  # type: ignore[arg-type]
    assert [text.tokens for text in found.texts] == [answers.texts[1].tokens]


class _WithEos:
    def __init__(self, checkpoint, eos: list[int]):
        self.model, self.eos = checkpoint.model, eos


def test_answers_are_the_models_and_are_computed_once(llama: Engine, answers: KnownAnswers) -> None:
    text = answers.texts[0]
    for length in (text.start, text.start + 5, len(text.tokens) - 3):
        step = branching_step(text.tokens[:length], text.tokens[length : length + 2])
        device = SingleDevice(llama.checkpoint.model)
        device.open(step.sequence)
        expected = device.launch([step])()[0]
        (found,) = answers.answer([(text, step)])
        assert found.candidates is not None and expected.candidates is not None
        assert np.array_equal(found.candidates, expected.candidates)
        assert np.array_equal(found.targets, expected.targets)
        computed = answers.num_computed
        (again,) = answers.answer([(text, step)])
        assert np.array_equal(again.targets, found.targets) and answers.num_computed == computed > 0


def test_several_steps_of_a_text_and_steps_without_a_tree_are_answered_together(answers: KnownAnswers) -> None:
    text = answers.texts[0]
    near, far = (branching_step(text.tokens[:length], text.tokens[length : length + 2]) for length in (21, 25))
    far.num_candidates = 0
    nothing = branching_step(text.tokens[:22], [])
    nothing.tree = NO_ROWS
    found = answers.answer([(text, near), (text, nothing), (text, far)])
    assert [len(one.targets) for one in found] == [len(near.tree), 0, len(far.tree)]
    assert found[0].targets[0] == text.tokens[21] and found[2].targets[0] == text.tokens[25]
    assert found[2].candidates is None
