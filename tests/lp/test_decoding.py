"""Decoders with a model that is a list: what they plan, what they learn, and that nothing but speed depends on it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lp import Autoregressive, Jacobi, Lookahead, PromptLookup
from lp.decoding import Decoder, DecodeSettings, LookaheadDecoder, make_decoder
from lp.tree import TokenTree

PROMPT = [1, 2, 3, 4, 1, 2, 3]
METHODS: list[DecodeSettings] = [Autoregressive(), Jacobi(4), PromptLookup(3, 4), Lookahead(4, 3, 4)]


def make_text(length: int = 60, seed: int = 0) -> list[int]:
    """The prompt and a text that repeats itself now and then."""
    rng = random.Random(seed)
    text = list(PROMPT)
    while len(text) < length:
        at = rng.randrange(len(text))
        text += text[at : at + 5] if rng.random() < 0.6 else [rng.randrange(1, 9)]
    return text[:length]


def answer(tree: TokenTree, num_known: int, text: list[int]) -> np.ndarray:
    """Rows on the text's path are answered with its next token, all others with 99."""
    targets = np.full(len(tree), 99)
    for row in range(len(tree)):
        path = tree.tokens[tree.path(row)].tolist()
        start = num_known - 1
        if text[start : start + len(path)] == path and start + len(path) < len(text):
            targets[row] = text[start + len(path)]
    return targets


def run(decoder: Decoder, text: list[int]) -> int:
    """Decodes the text; returns the number of steps."""
    tokens, steps = list(PROMPT), 0
    while len(tokens) < len(text):
        room = len(text) - len(tokens)
        tree = decoder.plan(tokens, room, wanted=room)
        assert tree.tokens[0] == tokens[-1]
        assert tree.depths.max() <= room
        accepted, drafted = decoder.commit(tokens, answer(tree, len(tokens), text))
        tokens += [token for token in accepted.tokens if token != 99]
        assert tokens == text[: len(tokens)]
        assert len(drafted.accepted) == len(accepted.tokens) - 1
        steps += 1
    return steps


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: settings.method)
def test_every_method_decodes_the_text(settings: DecodeSettings) -> None:
    for seed in range(5):
        text = make_text(seed=seed)
        steps = run(make_decoder(settings, PROMPT, seed=0), text)
        most = len(text) - len(PROMPT)
        assert steps == most if settings.method == "autoregressive" else steps <= most
        if settings.method in ("prompt_lookup", "lookahead"):
            assert steps < 0.8 * most


@pytest.mark.parametrize("prompt_drafts", [True, False])
@pytest.mark.parametrize("generated_drafts", [True, False])
def test_the_pool_holds_every_ngram_of_the_texts_that_feed_it(prompt_drafts: bool, generated_drafts: bool) -> None:
    settings = PromptLookup(3, 4, prompt_drafts, generated_drafts)
    decoder = make_decoder(settings, PROMPT, seed=0)
    text = make_text()
    run(decoder, text)
    assert isinstance(decoder, LookaheadDecoder) and decoder.feed
    begin, end = 0 if prompt_drafts else len(PROMPT), len(text) if generated_drafts else len(PROMPT)
    expected = {tuple(text[at : at + 3]) for at in range(begin, end - 2)}
    assert {(first, *rest) for first, rest in decoder.feed.pool.items()} == expected


def test_window_cells_feed_the_pool_only_if_they_are_to() -> None:
    def sources(settings: Lookahead) -> set[str]:
        decoder = make_decoder(settings, PROMPT, seed=0)
        run(decoder, make_text())
        assert isinstance(decoder, LookaheadDecoder) and decoder.feed
        pool = decoder.feed.pool
        return {found.source for token in range(100) for found in pool.lookup(token, 100)}

    off = {"prompt_drafts": False, "generated_drafts": False}
    assert sources(Lookahead(4, 3, 4, window_drafts=True, **off)) == {"window"}
    assert sources(Lookahead(4, 3, 4, window_drafts=False, **off)) == set()


def test_guesses_bound_the_drafts() -> None:
    decoder = make_decoder(PromptLookup(ngram=4, guesses=2), [1, 2, 2, 2, 1, 3, 3, 3, 1, 4, 4, 4, 1], seed=0)
    tree = decoder.plan([1], room=10, wanted=1000)
    assert sorted(tree.tokens[1:].tolist()) == [3, 3, 3, 4, 4, 4], "the newest two"


def test_jacobi_guesses_are_a_chain_that_improves() -> None:
    decoder = make_decoder(Jacobi(3), [7], seed=0)
    tree = decoder.plan([7], room=10, wanted=1000)
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    decoder.commit([7], np.array([20, 21, 22, 23]))
    assert decoder.plan([7, 20], room=10, wanted=1000).tokens.tolist() == [20, 21, 22, 23]
    accepted, drafted = decoder.commit([7, 20], np.array([21, 22, 30, 31]))
    assert accepted.tokens == [21, 22, 30] and drafted.accepted == ["jacobi", "jacobi"]
    assert decoder.plan([7, 20, 21, 22, 30], room=10, wanted=1000).tokens.tolist() == [30, 31, 7, 7]
    assert len(decoder.plan([7, 20, 21, 22, 30], room=1, wanted=1000)) == 2


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: settings.method)
def test_equal_decoders_stay_equal(settings: DecodeSettings) -> None:
    first, second, other = (make_decoder(settings, PROMPT, seed) for seed in (1, 1, 2))
    for decoder in (first, second, other):
        run(decoder, make_text())
    assert first.fingerprint() == second.fingerprint()
    assert 0 <= first.fingerprint() < 2**31
    if settings.method in ("jacobi", "lookahead"):
        assert first.fingerprint() != other.fingerprint()
