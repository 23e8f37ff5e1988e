"""The library drafts from a corpus as its reference does: the same trees, rests and estimates, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lp.drafting.account import PRIOR_TRIALS, Kinds
from lp.methods.auto.method import Auto
from lp.platform.library import library
from tests.lp.drafting.test_drafter import (
    CURVES,
    VOCAB_SIZE,
    Twins,
    World,
    make_corpus,
    make_index,
    run,
    step,
)

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("curve", ["unknown", "a CPU", "ranks"])
@pytest.mark.parametrize("seed", range(6))
def test_requests_with_a_corpus(curve: str, seed: int) -> None:
    """The more so where the other sources are off; with and without an index beside it."""
    rng = random.Random(f"corpus {curve} {seed}")
    sources: Any = [rng.random() < 0.3 for _ in range(5)]
    how = Auto(*sources, max_rows=40, candidates=rng.randint(1, 9))
    index = make_index(5, seed) if rng.random() < 0.4 else None
    twins = Twins(CURVES[curve], index, 3 if curve == "ranks" else None, make_corpus(World(seed % 3, 0.0), seed))
    for load, temperature in ((0, 0.0), (1, 0.7), (16, 0.0)):
        run(twins, how, seed, 60, temperature, "ann", load)
    profile = twins.native.profile(how, 0.0)
    trials = zip(profile.kinds.sources, profile.estimates.trials, strict=True)
    assert any(number != PRIOR_TRIALS for source, number in trials if source == "corpus")


def test_a_corpus_rests_alike() -> None:
    """A text of another world than the corpus' takes enough steps for several rests."""
    twins, world = Twins(None, None, None, make_corpus(World(0, 0.0), 5)), World(1, 0.3)
    how = Auto(window_drafts=False, recycled_drafts=False, rows=12)
    decoders, tokens, kinds = twins.decoders(how, [1, 2], 0.0, None), [1, 2], Kinds(how).sources
    has_proposed = []
    for _ in range(300):
        step(decoders, world, tokens, 1000)
        has_proposed.append(any(kinds[kind] == "corpus" for kind, _ in decoders[0].drafter.propose([3, 4], 0)))
    assert 10 < has_proposed.count(False) < 290


@pytest.mark.parametrize("large", [False, True], ids=["uint16", "uint32"])
def test_what_a_corpus_proposes_is_the_same_for_every_path(large: bool) -> None:
    """Also for tokens that it does not have, for many places, and for paths shorter than any match."""
    corpus = make_corpus(World(0, 0.0), 5)
    if large:
        corpus = replace(corpus, ids=corpus.ids.astype(np.uint32))
    how = Auto(False, False, False, False, False, rows=16)
    native, python = Twins(None, None, None, corpus).decoders(how, [1, 2], 0.0, None)
    rng, num_found = random.Random(1), 0
    for number in range(600):
        place = rng.randrange(len(corpus.ids) - 10)
        path = corpus.ids[place : place + rng.randint(1, 10)].tolist()
        if number % 3 == 0:
            path[rng.randrange(len(path))] = rng.randrange(VOCAB_SIZE + 2)
        one, two = ([(k, list(c)) for k, c in each.drafter.propose(path, 0)] for each in (native, python))
        assert one == two, path
        num_found += bool(one)
    assert 300 < num_found < 600
