"""Ranks that rest while one of them computes a step: the tokens are the same, and so are all ranks' decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling
from lp.model.checkpoint import ModelSettings, load
from lp.request import DecodingMethod, Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.step_cost import StepTimes
from lp.tree import TreeBuilder, chain
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except, slow_except

NEW_TOKENS = 40
PROMPTS = [[5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(150)]]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.3, seed=11, logprobs=2)
METHODS: list[DecodingMethod] = [
    Auto(window_drafts=False),
    Auto(max_window=5, ngram=4),
    Autoregressive(),
    Lookahead(5, 4, 5),
]


def times_of(num_parts: int) -> StepTimes:
    """Sharing pays from about twenty rows on, so that there are steps of both kinds."""
    alone = StepTimes((1, 2, 16, 64), (0.0100, 0.0102, 0.0125, 0.0400))
    return StepTimes((1, 2, 64), (0.0125, 0.0126, 0.0190), num_parts, alone if num_parts > 1 else None)


def resting_engine(channel: Channel, folder: str) -> tuple[Engine, LookaheadParallel]:
    checkpoint = load(ModelSettings(path=folder, device="cpu"))
    runner = LookaheadParallel(SingleDevice(checkpoint.model, prefill_chunk=16), channel)
    return Engine(checkpoint, runner, fingerprints=True, step_times=times_of(channel.num_ranks)), runner


Texts = list[tuple[list[int], list[float]]]


def decode_all(
    mesh: Mesh, channel: Channel, folder: str, sampling: Sampling
) -> tuple[Texts, list[int], list[list[bool]]]:
    """Tokens and log-probabilities of each text, this rank's rests in each, and whether each step was shared."""
    engine, runner = resting_engine(channel, folder)
    decisions: list[list[bool]] = []
    share = runner.sharing.share

    def noted(steps, numbers):
        all_shares = share(steps, numbers)
        decisions[-1].append(len(all_shares[0].rows) > 1)
        return all_shares

    runner.sharing.share = noted  # type: ignore[method-assign]
    texts: Texts = []
    rests = []
    for decode in METHODS:
        for prompt in PROMPTS:
            before = runner.num_rests
            decisions.append([])
            done = engine.generate(prompt, max_new_tokens=NEW_TOKENS, decode=decode, sampling=sampling)
            texts.append((done.token_ids, [entry.logprob for entry in done.logprobs or []]))
            rests.append(runner.num_rests - before)
    return texts, rests, decisions


@pytest.mark.parametrize("num_ranks", slow_except([1, 2, 4], 2))
def test_greedy_tokens_are_those_of_generate(num_ranks: int, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = []
    for prompt in PROMPTS:
        generated = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        expected.append(generated[0, len(prompt) :].tolist())
    results = run_ranks(decode_all, num_ranks, folder, Sampling(temperature=0.0, seed=3), timeout_s=60)
    for texts, _, decisions in results:
        assert [tokens for tokens, _ in texts] == expected * len(METHODS)
        assert decisions == results[0][2], "all ranks decide alike"
    # By text: how often a rank has rested, all ranks taken together.
    rests = np.sum([rests for _, rests, _ in results], axis=0)
    without_window, _, autoregressive, lookahead = np.split(rests, len(METHODS))
    assert without_window.any() == lookahead.any() == (num_ranks > 1), "small trees of any method are computed by one"
    assert (autoregressive == (num_ranks - 1) * (NEW_TOKENS - 1)).all(), "every rank computes the prompt"


@pytest.mark.parametrize("num_ranks", exhaustive_except([2, 4], 4))
def test_sampled_tokens_are_those_of_one_rank(num_ranks: int, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    ((alone, _, _),) = run_ranks(decode_all, 1, folder, SAMPLED)
    results = run_ranks(decode_all, num_ranks, folder, SAMPLED, timeout_s=60)
    assert sum(sum(rests[: len(PROMPTS)]) for _, rests, _ in results) > 0
    for texts, _, decisions in results:
        assert decisions == results[0][2]
        assert [tokens for tokens, _ in texts] == [tokens for tokens, _ in alone]
        for (_, logprobs), (_, expected) in zip(texts, alone, strict=True):
            np.testing.assert_allclose(logprobs, expected, atol=1e-4)


def random_rests(mesh: Mesh, channel: Channel, folder: str, seed: int) -> tuple[list[int], int]:
    """The greedy text of steps that are shared or not at random, whose drafts are random or right."""
    checkpoint = load(ModelSettings(path=folder, device="cpu"))
    alone = SingleDevice(checkpoint.model)
    runner = LookaheadParallel(SingleDevice(checkpoint.model, prefill_chunk=16), channel)
    right = Engine(checkpoint, alone).generate(
        PROMPTS[0], max_new_tokens=90, decode=Autoregressive(), sampling=Sampling(temperature=0.0, seed=0)
    )
    text = [*PROMPTS[0], *right.token_ids]
    rng = np.random.default_rng(seed)
    sequence = Sequence("1", list(PROMPTS[0]), len(PROMPTS[0]), Sampling(temperature=0.0, seed=0))
    runner.open(sequence)
    while len(sequence.tokens) < len(text) - 8:
        at = len(sequence.tokens)
        builder = TreeBuilder(sequence.tokens[-1])
        for _ in range(int(rng.integers(4))):
            row = 0
            for depth in range(int(rng.integers(1, 5))):
                row = builder.add(text[at + depth] if rng.random() < 0.8 else 3, row)
        tree = builder.build() if rng.random() < 0.8 else chain(sequence.tokens[-1:])
        runner.share_trees(bool(rng.random() < 0.4))
        (answers,) = runner.launch([StepInput.of(sequence, tree)])()
        row = 0
        while True:
            target = int(answers.targets[row])
            assert target == text[len(sequence.tokens)]
            sequence.tokens.append(target)
            found = [child for child in tree.children[row] if tree.tokens[child] == target]
            if not found:
                break
            row = found[0]
    return sequence.tokens, runner.num_rests


@pytest.mark.parametrize("seed", slow_except(range(2), 0))
def test_any_order_of_shared_steps_and_rests_gives_the_same_answers(
    seed: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    results = run_ranks(random_rests, 3, str(checkpoint_folder("llama")), seed)
    assert len({tuple(tokens) for tokens, _ in results}) == 1
    assert sum(rests for _, rests in results) > 10
