"""The kernel for penalties, interpreted, changes scores exactly as transformers' processors do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lp import Sampling
from lp.sampling.penalties import Penalties, can_penalise
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree, TreeBuilder, chain
from tests.lp.model.gpu.fused.interpreter import interpret

VOCABULARY, EOS, PROMPT = 700, [3, 9], [5, 6, 5, 9, 600, 7]
SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.3},
    "negative": {"presence_penalty": -1.1, "frequency_penalty": -0.7, "repetition_penalty": 0.9},
    "bias": {"logit_bias": {5: 3.3, 650: -100.0}},
    "no end yet": {"min_new_tokens": 5},
    "all": {
        "repetition_penalty": 1.17, "presence_penalty": 0.21, "frequency_penalty": 0.37, "min_new_tokens": 4,
        "logit_bias": {7: 1.7, 11: -0.3},
    },
}  # fmt: skip


def make_tree(root: int) -> TokenTree:
    """Tokens of the sequence and new ones, some of them twice on a path."""
    builder = TreeBuilder(root)
    path = builder.add(11, builder.add(11, builder.add(5, 0)))
    for token in (12, 5, 650):
        builder.add(token, path)
    builder.add(3, 0)
    return builder.build()


def logits_of(num_rows: int, seed: int) -> torch.Tensor:
    return 4 * torch.randn(num_rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_are_those_of_the_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step after step of a growing sequence, which once is resumed with fewer tokens."""
    interpret(monkeypatch)
    sampling = Sampling.greedy().changed(SETTINGS[name])
    reference = Sampler(sampling, len(PROMPT), EOS, VOCABULARY, "cpu")
    penalties = Penalties(sampling, len(PROMPT), EOS, VOCABULARY)
    for seed, tokens in enumerate(([], [11], [11, 11, 8, 5], [11, 4], [11, 4, 13, 13, 13, 2])):
        sequence = [*PROMPT, *tokens]
        for tree in (make_tree(sequence[-1]), chain(sequence[-1:])):
            logits = logits_of(len(tree), seed)
            expected = reference.scores(logits.clone(), tree, sequence)
            penalties(logits, tree, sequence)
            assert torch.equal(logits, expected)


def test_many_tokens_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one program's, and a part of a tree whose rows have lost some of their children."""
    interpret(monkeypatch)
    sampling = Sampling.greedy().changed(SETTINGS["all"])
    sequence = np.random.default_rng(0).integers(VOCABULARY, size=900).tolist()
    tree = make_tree(sequence[-1]).take([0, 1, 2, 3, 5])
    logits = logits_of(len(tree), 1)
    expected = Sampler(sampling, 200, EOS, VOCABULARY, "cpu").scores(logits.clone(), tree, sequence)
    Penalties(sampling, 200, EOS, VOCABULARY)(logits, tree, sequence)
    assert torch.equal(logits, expected)


def test_ngrams_that_may_not_repeat_have_no_kernel() -> None:
    assert can_penalise(Sampling(no_repeat_ngram=0)) and not can_penalise(Sampling(no_repeat_ngram=3))
