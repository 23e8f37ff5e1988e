"""All decoders with a fixed text as the model: what they plan and learn, and that the text never depends on it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lp import Auto, Autoregressive, Jacobi, Lookahead, PromptLookup
from lp.decoder import Decoder
from lp.drafting.history import DraftHistory
from lp.methods.ngram_pool import PoolDecoder
from lp.request import DecodingMethod
from lp.tree import Answers, TokenTree
from tests.lp.decoders import make_decoder

PROMPT = [1, 2, 3, 4, 1, 2, 3]
METHODS: list[DecodingMethod] = [
    Auto(rows=24, max_window=3, ngram=3), Autoregressive(), Jacobi(4), PromptLookup(3, 4), Lookahead(4, 3, 4)
]  # fmt: skip


def decoder_of(settings: DecodingMethod, prompt: list[int], seed: int = 0) -> Decoder:
    return make_decoder(settings, prompt, seed, 0.0, DraftHistory())


def answered(targets: list[int] | np.ndarray, num_candidates: int = 0) -> Answers:
    """Answers whose candidates after the target are numbers that no text contains."""
    candidates = np.array(targets)[:, None] + 1000 * np.arange(num_candidates) if num_candidates else None
    return Answers(np.array(targets), candidates)


def make_text(length: int = 60, seed: int = 0) -> list[int]:
    """The prompt, followed by a text that repeats itself now and then."""
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
        accepted, count = decoder.commit(tokens, answered(answer(tree, len(tokens), text), decoder.num_candidates))
        tokens += [token for token in accepted.tokens if token != 99]
        assert tokens == text[: len(tokens)]
        assert len(count().accepted) == len(accepted.tokens) - 1
        steps += 1
    return steps


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: settings.method)
def test_every_method_decodes_the_text(settings: DecodingMethod) -> None:
    for seed in range(5):
        text = make_text(seed=seed)
        steps = run(decoder_of(settings, PROMPT), text)
        most = len(text) - len(PROMPT)
        assert steps == most if settings.method == "autoregressive" else steps <= most
        if settings.method in ("auto", "prompt_lookup", "lookahead"):
            assert steps < 0.8 * most


@pytest.mark.parametrize("prompt_drafts", [True, False])
@pytest.mark.parametrize("generated_drafts", [True, False])
def test_the_pool_holds_every_ngram_of_the_texts_that_feed_it(prompt_drafts: bool, generated_drafts: bool) -> None:
    settings = PromptLookup(3, 4, prompt_drafts, generated_drafts)
    decoder = decoder_of(settings, PROMPT)
    text = make_text()
    run(decoder, text)
    assert isinstance(decoder, PoolDecoder)
    begin, end = 0 if prompt_drafts else len(PROMPT), len(text) if generated_drafts else len(PROMPT)
    expected = {tuple(text[at : at + 3]) for at in range(begin, end - 2)}
    assert {(first, *rest) for first, rest in decoder.feed.pool.items()} == expected


def test_the_window_feeds_the_pool_only_with_window_drafts() -> None:
    def sources(settings: Lookahead) -> set[str]:
        decoder = decoder_of(settings, PROMPT)
        run(decoder, make_text())
        assert isinstance(decoder, PoolDecoder)
        pool = decoder.feed.pool
        return {found.source for token in range(100) for found in pool.lookup(token, 100)}

    off = {"prompt_drafts": False, "generated_drafts": False}
    assert sources(Lookahead(4, 3, 4, window_drafts=True, **off)) == {"window"}
    assert sources(Lookahead(4, 3, 4, window_drafts=False, **off)) == set()


def test_guesses_bound_the_drafts() -> None:
    decoder = decoder_of(PromptLookup(ngram=4, guesses=2), [1, 2, 2, 2, 1, 3, 3, 3, 1, 4, 4, 4, 1])
    tree = decoder.plan([1], room=10, wanted=1000)
    assert sorted(tree.tokens[1:].tolist()) == [3, 3, 3, 4, 4, 4], "the newest two"


def test_jacobi_guesses_are_a_chain_that_improves() -> None:
    decoder = decoder_of(Jacobi(3), [7])
    tree = decoder.plan([7], room=10, wanted=1000)
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    decoder.commit([7], answered([20, 21, 22, 23]))
    assert decoder.plan([7, 20], room=10, wanted=1000).tokens.tolist() == [20, 21, 22, 23]
    accepted, count = decoder.commit([7, 20], answered([21, 22, 30, 31]))
    assert accepted.tokens == [21, 22, 30] and count().accepted == ["jacobi", "jacobi"]
    assert decoder.plan([7, 20, 21, 22, 30], room=10, wanted=1000).tokens.tolist() == [30, 31, 7, 7]
    assert len(decoder.plan([7, 20, 21, 22, 30], room=1, wanted=1000)) == 2


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: settings.method)
def test_equal_decoders_stay_equal(settings: DecodingMethod) -> None:
    first, second, other = (decoder_of(settings, PROMPT, seed) for seed in (1, 1, 2))
    for decoder in (first, second, other):
        run(decoder, make_text())
    assert first.fingerprint() == second.fingerprint()
    assert 0 <= first.fingerprint() < 2**31
    if settings.method in ("jacobi", "lookahead"):
        assert first.fingerprint() != other.fingerprint()


def test_lookahead_does_not_accept_window_cells() -> None:
    decoder = decoder_of(Lookahead(2, 3, 2, prompt_drafts=False), [7])
    tree = decoder.plan([7], room=10, wanted=10)
    assert tree.tokens.tolist() == [7, 7, 7]
    accepted, count = decoder.commit([7], answered([7, 7, 7]))
    assert accepted.tokens == [7] and not count().proposed


def test_window_cells_are_greedy_rows_without_position_noise() -> None:
    by_position, as_in_the_paper = (
        decoder_of(Lookahead(3, 3, 2, position_noise=noise), PROMPT).plan(PROMPT, 50, 50) for noise in (True, False)
    )
    num_cells = 3
    assert by_position.greedy is None and as_in_the_paper.greedy is not None
    assert as_in_the_paper.greedy.tolist() == [False] * (len(as_in_the_paper) - num_cells) + [True] * num_cells
    part = as_in_the_paper.take([0, len(as_in_the_paper) - num_cells])
    assert part.greedy is not None and part.greedy.tolist() == [False, True]
