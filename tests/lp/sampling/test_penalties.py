"""Penalties change scores exactly as transformers' processors do, those of many sequences at once.

By the kernel, interpreted, and by operations on pairs of a row and a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.shared.processors import context_processors
from lp import Sampling
from lp.sampling.penalties import Penalties, change, touches
from lp.tree import TokenTree, TreeBuilder, chain
from tests.lp.model.gpu.interpreter import interpret

VOCABULARY, EOS, PROMPT = 700, [3, 9], [5, 6, 5, 9, 600, 7]
SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.3},
    "negative": {"presence_penalty": -1.1, "frequency_penalty": -0.7, "repetition_penalty": 0.9},
    "bias": {"logit_bias": {5: 3.3, 650: -100.0}},
    "no end yet": {"min_new_tokens": 5},
    "no token twice": {"no_repeat_ngram": 1},
    "no pair twice": {"no_repeat_ngram": 2},
    "no n-gram twice": {"no_repeat_ngram": 4, "repetition_penalty": 0.8},
    "bad words": {"bad_words": [[8], [11, 5], [11, 11, 12], [9, 600, 7, 650], [1, 2, 3, 4, 5, 6, 7, 8, 9]]},
    "all": {
        "repetition_penalty": 1.17, "presence_penalty": 0.21, "frequency_penalty": 0.37, "min_new_tokens": 4,
        "logit_bias": {7: 1.7, 11: -0.3}, "no_repeat_ngram": 3, "bad_words": [[11, 12], [4]],
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


def reference(sampling: Sampling, logits: torch.Tensor, tree: TokenTree, tokens: list[int], prompt_length: int) -> Any:
    """transformers' processors, row by row."""
    processors: Any = context_processors(sampling, prompt_length, EOS)
    paths = [[*tokens, *tree.tokens[tree.path(row)[1:]].tolist()] for row in range(len(tree))]
    return torch.cat(
        [processors(torch.tensor([path]), logits[row : row + 1].clone()) for row, path in enumerate(paths)]
    )


@pytest.fixture(params=["kernel", "pairs"])
def is_fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "kernel":
        interpret(monkeypatch)
    return request.param == "kernel"


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_are_those_of_the_processors(name: str, is_fused: bool) -> None:
    """Step after step of a growing sequence, which once is resumed with fewer tokens."""
    sampling = Sampling.greedy().changed(SETTINGS[name])
    assert touches(sampling, EOS)
    penalties = Penalties(sampling, len(PROMPT), EOS, VOCABULARY)
    for seed, tokens in enumerate(([], [11], [11, 11, 8, 5], [11, 4], [11, 4, 13, 13, 13, 2])):
        sequence = [*PROMPT, *tokens]
        for tree in (make_tree(sequence[-1]), chain(sequence[-1:])):
            logits = logits_of(len(tree), seed)
            expected = reference(sampling, logits, tree, sequence, len(PROMPT))
            change(logits, [(0, penalties.touch(tree, sequence))], is_fused)
            assert torch.equal(logits, expected)


def test_short_sequences_repeat_nothing(is_fused: bool) -> None:
    """Shorter than an n-gram, and just as long."""
    sampling = Sampling.greedy().changed({"no_repeat_ngram": 4})
    for length in range(1, 6):
        sequence = [7] * length
        tree = chain([7, 7, 7, 7])
        logits = logits_of(len(tree), length)
        expected = reference(sampling, logits, tree, sequence, 1)
        change(logits, [(0, Penalties(sampling, 1, EOS, VOCABULARY).touch(tree, sequence))], is_fused)
        assert torch.equal(logits, expected)


def test_many_tokens_are_touched(is_fused: bool) -> None:
    """More than one program's, and a part of a tree whose rows have lost some of their children."""
    sampling = Sampling.greedy().changed(SETTINGS["all"])
    sequence = np.random.default_rng(0).integers(VOCABULARY, size=900).tolist()
    tree = make_tree(sequence[-1]).take([0, 1, 2, 3, 5])
    logits = logits_of(len(tree), 1)
    expected = reference(sampling, logits, tree, sequence, 200)
    change(logits, [(0, Penalties(sampling, 200, EOS, VOCABULARY).touch(tree, sequence))], is_fused)
    assert torch.equal(logits, expected)


def test_sequences_of_all_settings_are_changed_at_once(is_fused: bool) -> None:
    """Rows that belong to none of them stay as they are, and one has far more tokens than the others."""
    rng = np.random.default_rng(1)
    logits = logits_of(70, 2)
    expected, touched, first = logits.clone(), [], 1
    for number, settings in enumerate(SETTINGS.values()):
        sampling = Sampling.greedy().changed(settings)
        sequence = rng.integers(VOCABULARY, size=600 if number == 3 else 5 + number).tolist()
        tree = chain(sequence[-1:]) if number % 3 == 0 else make_tree(sequence[-1])
        own = slice(first, first + len(tree))
        expected[own] = reference(sampling, logits[own], tree, sequence, 4)
        touched.append((first, Penalties(sampling, 4, EOS, VOCABULARY).touch(tree, sequence)))
        first = own.stop + number % 2
    change(logits, touched, is_fused)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.7, "top_k": 3, "logprobs": 2}, {"min_new_tokens": 0, "repetition_penalty": 1.0}]
)
def test_other_settings_touch_nothing(settings: dict[str, Any]) -> None:
    assert not touches(Sampling.greedy().changed(settings), EOS)
    assert not touches(Sampling.greedy().changed({"min_new_tokens": 3}), [])
