"""The searches on random models: a table of log-probabilities by the last two tokens."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lp.methods.beam import (
    Beam,
    BeamSearch,
    BestFirstSearch,
    Continuations,
    Hypothesis,
    Path,
    Search,
    num_continuations,
)

VOCAB, END, LENGTH = 6, 0, 5
MONOTONE = {"length_penalty": 0.0, "early_stopping": "never"}


def make_model(seed: int) -> np.ndarray:
    """[VOCAB + 1, VOCAB + 1, VOCAB] log-probabilities; number VOCAB stands for no token."""
    logits = np.random.default_rng(seed).normal(size=(VOCAB + 1, VOCAB + 1, VOCAB)) * 2
    return (logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))).astype(np.float32)


def logprobs_after(model: np.ndarray, path: Path) -> np.ndarray:
    before = (VOCAB, VOCAB, *path)
    return model[before[-2], before[-1]]


def run(search: Search, model: np.ndarray, num: int) -> list[Hypothesis]:
    while not search.is_done:
        found = []
        for path in search.wanted:
            logprobs = logprobs_after(model, path)
            best = np.argsort(-logprobs, kind="stable")[:num]
            found.append(Continuations(best, logprobs[best]))
        search.expand(found)
    return search.result()


def search_of(settings: Beam) -> Search:
    kind = BestFirstSearch if settings.best_first else BeamSearch
    return kind(settings, [END], LENGTH)


def find(seed: int, **settings) -> tuple[list[Hypothesis], int]:
    decode = Beam(**settings)
    search = search_of(decode)
    found = run(search, make_model(seed), num_continuations(decode, 1))
    return found, search.num_calls


def everything(seed: int) -> list[tuple[float, Path]]:
    """All texts with their scores, best first."""
    model, texts = make_model(seed), []
    for length in range(1, LENGTH + 1):
        for body in product(range(1, VOCAB), repeat=length - 1):
            for last in range(VOCAB) if length == LENGTH else [END]:
                path = (*body, last)
                texts.append((sum(float(logprobs_after(model, path[:at])[path[at]]) for at in range(length)), path))
    return sorted(texts, reverse=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_that_holds_everything_finds_the_likeliest_texts(seed: int) -> None:
    found, _ = find(seed, num_beams=700, num_return_sequences=5, **MONOTONE)
    best = everything(seed)[:5]
    assert [text.tokens for text in found] == [path for _, path in best]
    assert [text.score for text in found] == pytest.approx([score for score, _ in best], abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize("num_texts", [1, 2])
def test_best_first_finds_the_same_texts_with_no_more_calls(num_beams: int, num_texts: int) -> None:
    saved = 0
    for seed in range(60):
        settings = {"num_beams": num_beams, "num_return_sequences": min(num_texts, num_beams), **MONOTONE}
        beam, calls = find(seed, **settings)
        first, fewer = find(seed, best_first=True, **settings)
        assert first[0].tokens == beam[0].tokens and first[0].score == pytest.approx(beam[0].score, abs=1e-5)
        if num_texts == 1:
            assert fewer <= calls
            saved += calls - fewer
    assert saved > 0 or num_texts > 1 or num_beams == 1


def test_one_beam_is_greedy_decoding() -> None:
    for seed in range(20):
        path: Path = ()
        model = make_model(seed)
        while not path or (path[-1] != END and len(path) < LENGTH):
            path = (*path, int(np.argmax(logprobs_after(model, path))))
        # Two continuations are kept, so a text that ends early may be beaten by one that goes on.
        found, calls = find(seed, num_beams=1, early_stopping="true")
        assert found[0].tokens == path and calls == len(path)


def test_a_penalty_prefers_longer_texts() -> None:
    short, long = (
        sum(len(find(seed, num_beams=4, length_penalty=penalty)[0][0].tokens) for seed in range(40))
        for penalty in (0.0, 2.0)
    )
    assert long > short
