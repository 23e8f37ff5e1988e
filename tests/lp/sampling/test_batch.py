"""Sequences of all settings in one step: each is answered as if it were alone, and more of them are no more work."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig

from lp import Sampling
from lp.platform.library import python_alone
from lp.sampling.batch import Asked, launch_all, side_by_side
from lp.sampling.sampler import Sampler
from lp.tree import Answers, TokenTree, chain
from tests.lp.test_tree import random_tree

EOS = [3, 9]
# Sampled ones differ in their settings and seeds, penalised and reported ones in theirs.
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.3},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.5, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.6, "top_k": 50, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 4.0, "top_p": 0.99},  # no shortlist decides it
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "no_repeat_ngram": 2, "logprobs": 0},
    {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"logit_bias": {7: 2.0, 11: -100.0}, "min_new_tokens": 30},
    {"logprobs": 5},
    {"temperature": 0.9, "top_p": 0.7, "logprobs": 2, "repetition_penalty": 1.1},
    {"temperature": 4.0, "top_p": 0.99, "logprobs": 1},
]


class Sequences:
    """A sampler for each of the settings, several times over with other seeds, and a step of each."""

    def __init__(self, vocab_size: int, times: int = 1, device: str = "cpu"):
        rng = np.random.default_rng(3)
        self.samplers: list[Sampler] = []
        self.trees: list[TokenTree] = []
        self.texts: list[list[int]] = []
        for number, settings in enumerate(SETTINGS * times):
            sampling = Sampling.greedy().changed({"seed": number, **settings})
            self.samplers.append(Sampler(sampling, 6, EOS, vocab_size, device))
            text = rng.integers(2, 200, 6 + int(rng.integers(30))).tolist()
            tree = random_tree(rng, int(rng.integers(2, 9))) if number % 2 else chain([0])
            tree.tokens[0] = text[-1]
            tree.tokens[1:] %= 200
            greedy = rng.random(len(tree)) < 0.2 if number % 5 == 0 else None
            self.trees.append(dataclasses.replace(tree, greedy=greedy))
            self.texts.append(text)
        self.logits = 3 * torch.randn(sum(map(len, self.trees)), vocab_size, generator=torch.Generator().manual_seed(1))

    def ask(self, numbers: Sequence[int]) -> list[Asked]:
        """Those with every third of the settings ask for candidates."""
        return [
            self.samplers[number].ask(self.trees[number], self.texts[number], 0 if number % len(SETTINGS) % 3 else 8)
            for number in numbers
        ]

    def logits_of(self, number: int) -> torch.Tensor:
        first = sum(map(len, self.trees[:number]))
        return self.logits[first : first + len(self.trees[number])].clone()

    def alone(self, number: int) -> Answers:
        return launch_all(self.ask([number]), self.logits_of(number))()[0]

    def together(self, numbers: Sequence[int]) -> list[Answers]:
        asked = self.ask(numbers)
        order = side_by_side(asked)
        logits = torch.cat([self.logits_of(numbers[place]) for place in order])
        found = launch_all([asked[place] for place in order], logits)()
        return [found[order.index(place)] for place in range(len(numbers))]


def same(one: Answers, other: Answers) -> None:
    for name in ("targets", "candidates", "logprobs", "top_tokens", "top_logprobs"):
        found, expected = getattr(one, name), getattr(other, name)
        assert (found is None) == (expected is None), name
        assert found is None or (found.dtype == expected.dtype and np.array_equal(found, expected)), name


@pytest.mark.parametrize("vocab_size", [300, 16_000])
def test_each_is_answered_to_the_last_bit_as_if_it_were_alone(vocab_size: int) -> None:
    sequences = Sequences(vocab_size)
    expected = [sequences.alone(number) for number in range(len(SETTINGS))]
    rng = np.random.default_rng(0)
    for size in (len(SETTINGS), 9, 4, 2):
        numbers = rng.permutation(len(SETTINGS))[:size].tolist()
        for number, found in zip(numbers, sequences.together(numbers), strict=True):
            same(found, expected[number])


def test_rows_may_lie_anywhere_and_vanish_after_the_step() -> None:
    """As a graph's logits do: sequences in any order, rows of nobody between them, written over before the answers."""
    sequences = Sequences(300)
    numbers = np.random.default_rng(1).permutation(len(SETTINGS)).tolist()
    expected = [sequences.alone(number) for number in numbers]
    logits, rows = torch.full((2 * len(sequences.logits), 300), 50.0), []
    end = 0
    for place, number in enumerate(numbers):
        begin = end + place % 3
        end = begin + len(sequences.trees[number])
        logits[begin:end] = sequences.logits_of(number)
        rows.append(slice(begin, end))
    wait = launch_all(sequences.ask(numbers), logits, rows, is_lasting=False)
    logits.fill_(float("nan"))
    for found, one in zip(wait(), expected, strict=True):
        same(found, one)


class Counted(TorchDispatchMode):
    """Counts operations that are no views."""

    VIEWS = ("slice", "view", "select", "unsqueeze", "expand", "split", "detach", "alias", "unbind")

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(name in str(func) for name in self.VIEWS):
            self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_more_sequences_are_no_more_operations() -> None:
    """Noise of the whole vocabulary is not counted, as a CPU makes it in parts."""
    calls = []
    for times in (1, 2, 4):
        sequences = Sequences(300, times)
        sequences.together(range(len(SETTINGS) * times))  # makes the noise
        asked = sequences.ask(range(len(SETTINGS) * times))
        order = side_by_side(asked)
        logits = torch.cat([sequences.logits_of(number) for number in order])
        with Counted() as counted:
            launch_all([asked[number] for number in order], logits)()
        calls.append(counted.calls)
    assert calls[0] == calls[1] == calls[2]


@pytest.mark.parametrize("seed", [0, 3, 2**63 + 5])
def test_the_library_and_python_ask_for_the_same_draws(seed: int) -> None:
    settings = Sampling(temperature=0.7, seed=seed).with_defaults(GenerationConfig())
    tree = TokenTree(np.array([5, 6, 7, 8]), np.array([-1, 0, 0, 2]), np.array([0, 1, 1, 2]))
    compiled, python = (Sampler(settings, 1, [], 50, "cpu") for _ in range(2))
    one = compiled.ask(tree, [1, 2, 3], 4)
    with python_alone():
        two = python.ask(tree, [1, 2, 3], 4)
    assert one.choosers == two.choosers and one.choices.tolist() == two.choices.tolist()
    assert one.positions.tolist() == two.positions.tolist() == [3, 4, 4, 5]
    assert one.dropped.tolist() == two.dropped.tolist() and one.num_candidates == two.num_candidates
