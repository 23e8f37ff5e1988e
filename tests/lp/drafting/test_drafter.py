"""The library's drafter and its reference make the same trees, accept the same, and learn the same, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lp.drafting import drafter
from lp.drafting.account import Effort
from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import Corpus, build_corpus
from lp.drafting.drafter import NativeDrafter, NativeShared
from lp.drafting.history import DraftHistory
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.method import Auto
from lp.platform.library import library
from lp.step_cost import Extras, StepTimes
from lp.tree import Answers, TokenTree
from tests.lp.decoders import make_decoder
from tests.lp.drafting.reference.drafter import ReferenceDrafter, reference_history
from tests.lp.drafting.reference.sources import SharedKnowledge
from tests.slow import exhaustive_except

VOCAB_SIZE = 24
CURVES = {
    "unknown": None,
    "a CPU": StepTimes((1, 4, 8, 16, 32, 64, 128), (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064)),
    "watching": StepTimes((1, 2, 128), (0.010, 0.015, 0.640)),
    "slow host": StepTimes((1, 4, 64), (0.010, 0.011, 0.013), extras=Extras(0.001, 1e-5, 0.001, 1e-5)),
    "ranks": StepTimes(
        (1, 4, 8, 16, 32, 64, 128), (0.016, 0.016, 0.017, 0.018, 0.022, 0.030, 0.040), num_parts=3,
        alone=StepTimes((1, 4, 8, 16, 32, 64, 128), (0.010, 0.011, 0.013, 0.019, 0.025, 0.036, 0.064)),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    if library() is None:
        pytest.skip("there is no C++ compiler")
    yield


def make_index(num_candidates: int, seed: int) -> AnswerIndex:
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(-1, VOCAB_SIZE, (60, 2)), axis=0).astype(np.int32)
    pairs = pairs[pairs[:, 1] >= 0]
    tokens = np.unique(rng.integers(0, VOCAB_SIZE, 12)).astype(np.int32)
    arrays = {
        "pairs": pairs,
        "pair_answers": rng.integers(0, VOCAB_SIZE, (len(pairs), num_candidates)).astype(np.int32),
        "tokens": tokens,
        "token_answers": rng.integers(0, VOCAB_SIZE, (len(tokens), num_candidates)).astype(np.int32),
    }
    return AnswerIndex("made up", "0", arrays)


def make_corpus(world: World, seed: int) -> Corpus:
    """Texts of which most tokens are what the world answers, and some are not."""
    rng, texts = random.Random(seed), []
    for _ in range(8):
        text = [rng.randrange(VOCAB_SIZE) for _ in range(2)]
        for _ in range(200):
            right = int(world.best[text[-2], text[-1], 0])
            text.append(right if rng.random() < 0.9 else rng.randrange(VOCAB_SIZE))
        texts.append(text)
    return build_corpus("made up", VOCAB_SIZE, texts)


class World:
    """A model whose answers depend on the last two tokens, and now and then on the position, so that drafts are right
    and wrong.
    """

    def __init__(self, seed: int, surprise: float):
        self.best = np.random.default_rng(seed).integers(0, VOCAB_SIZE, (VOCAB_SIZE + 2, VOCAB_SIZE + 2, 64))
        self.seed, self.surprise = seed, surprise

    def answers(self, tree: TokenTree, length: int, before: int, num_candidates: int) -> Answers:
        found = np.empty((len(tree), max(1, num_candidates)), np.int64)
        for row, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            previous = before if parent < 0 else tree.tokens[parent]
            found[row] = self.best[previous, token, : found.shape[1]]
            if random.Random(hash((self.seed, length, int(depth), int(token)))).random() < self.surprise:
                found[row] = (found[row] + 1 + length) % VOCAB_SIZE
        return Answers(found[:, 0].copy(), found.astype(np.int32) if num_candidates else None)


class Twins:
    """Two engines' pasts, one of the library and one of its reference, that live through the same requests."""

    def __init__(
        self,
        times: StepTimes | None,
        index: AnswerIndex | None,
        num_parts: int | None,
        corpus: Corpus | None = None,
    ):
        self.native = DraftHistory(times, num_parts, index, corpus=corpus)
        self.reference = reference_history(times, num_parts, index, corpus)

    def decoders(self, how: Auto, prompt: list[int], temperature: float, owner: str | None) -> list[AutoDecoder]:
        made = [make_decoder(how, prompt, 3, temperature, past, owner) for past in (self.native, self.reference)]
        native, reference = made
        assert isinstance(native, AutoDecoder) and isinstance(reference, AutoDecoder)
        assert isinstance(native.drafter, NativeDrafter) and isinstance(reference.drafter, ReferenceDrafter)
        return [native, reference]


def step(decoders: list[AutoDecoder], world: World, tokens: list[int], wanted: int, load: int = 0) -> None:
    """One step of both decoders, which must agree in everything. Adds the accepted tokens.

    load: of an offered tree, of which some part is taken; 0 plans a tree.
    """
    one, two = planned(decoders, tokens, wanted, load)
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.parents.tolist() == two.parents.tolist() and one.depths.tolist() == two.depths.tolist()
    same_inputs(one, two, len(tokens) - 1)
    drafters = [decoder.drafter for decoder in decoders]
    assert len({drafter.expected for drafter in drafters}) == 1
    assert len({decoder.num_candidates for decoder in decoders}) == 1
    if decoders[0]._effort is not Effort.plain:
        path = [*tokens, *one.tokens[one.path(len(one) - 1)[1:]].tolist()]
        depth = len(path) - len(tokens)
        proposed = [[(kind, tuple(found)) for kind, found in each.propose(path, depth)] for each in drafters]
        assert proposed[0] == proposed[1]
        assert len({drafter.likeliest() for drafter in drafters}) == 1
    answers = world.answers(one, len(tokens), tokens[-2] if len(tokens) > 1 else 0, decoders[0].num_candidates)
    (accepted, count), (expected, count_expected) = (decoder.commit(tokens, answers) for decoder in decoders)
    assert accepted == expected
    assert count() == count_expected()
    assert decoders[0].fingerprint() == decoders[1].fingerprint()
    for name in ("probabilities", "hits", "trials"):
        assert len({getattr(decoder.profile.estimates, name).tobytes() for decoder in decoders}) == 1
    for text in ([tokens[-1], *accepted.tokens], [tokens[-1], *accepted.tokens][:2], [tokens[-1] + 1]):
        assert one.path_along(text) == two.path_along(text)
    tokens += accepted.tokens[:wanted]


def planned(decoders: list[AutoDecoder], tokens: list[int], wanted: int, load: int) -> list[TokenTree]:
    if not load:
        return [decoder.plan(tokens, room=wanted + 9, wanted=wanted) for decoder in decoders]
    (num_rows, odds), other = (decoder.propose(tokens, wanted + 9, wanted, load) for decoder in decoders)
    assert (num_rows, list(odds)) == (other.num_rows, list(other.odds))
    number = random.Random(f"{load} {len(tokens)}").randint(0, len(odds))
    trees = [decoder.build_tree(number) for decoder in decoders]
    assert {len(tree) for tree in trees} == {num_rows + number}
    return trees


def same_inputs(one: TokenTree, two: TokenTree, cached: int) -> None:
    """Whatever is made of a tree of the library is made of the other one, too."""
    assert (one.inputs(cached) == two.inputs(cached)).all()


def test_a_tree_is_used_after_the_next_one_was_planned() -> None:
    decoder, _ = Twins(None, None, None).decoders(Auto(rows=16), [1, 2, 3], 0.0, None)
    world, tokens = World(1, 0.0), [1, 2, 3]
    trees = []
    for _ in range(6):
        trees.append(decoder.plan(tokens, room=50, wanted=50))
        answers = world.answers(trees[-1], len(tokens), tokens[-2], decoder.num_candidates)
        tokens += decoder.commit(tokens, answers)[0].tokens
        for tree in trees:
            same_inputs(tree, TokenTree(tree.tokens, tree.parents, tree.depths), cached=len(tokens))
    assert max(map(len, trees)) == 16


def run(
    twins: Twins, how: Auto, seed: int, num_tokens: int, temperature: float, owner: str | None, load: int = 0
) -> None:
    rng = random.Random(seed)
    world = World(seed % 3, rng.choice([0.0, 0.05, 0.3, 1.0]))
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 2, 9, 40]))]
    decoders, length = twins.decoders(how, list(tokens), temperature, owner), len(tokens)
    while (left := num_tokens - (len(tokens) - length)) > 0:
        step(decoders, world, tokens, left, load)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("seed", exhaustive_except(range(12), *range(4, 7), quick=range(4)))
def test_requests_one_after_the_other(curve: str, seed: int) -> None:
    """The settings may be any."""
    rng = random.Random(f"{curve} {seed}")
    sources: Any = [rng.random() < 0.7 for _ in range(5)]
    most = rng.choice([1, 2, 7, 16, 40, 70])
    how = Auto(
        *sources, max_rows=most, rows=rng.choice([0, most]), max_window=rng.randrange(10), ngram=rng.randint(2, 7),
        candidates=rng.randint(1, 9),
    )  # fmt: skip
    temperature, has_index = rng.choice([0.0, 0.7]), rng.random() < 0.4
    twins = Twins(CURVES[curve], make_index(5, seed) if has_index else None, 3 if curve == "ranks" else None)
    for number in range(3):
        run(twins, how, seed + number, 60, temperature, "ann" if number else None)
    for load in (1, 2, 16):
        run(twins, how, seed + load, 60, temperature, "ann", load)


def test_requests_of_one_owner_that_take_turns_and_ask_for_different_candidates() -> None:
    twins, world = Twins(None, None, None), World(1, 0.1)
    texts = [[1, 2, 3], [2, 3, 4]]
    several = [
        twins.decoders(Auto(shared_drafts=True, rows=32, candidates=number), list(text), 0.0, "ann")
        for number, text in zip((4, 7), texts, strict=True)
    ]
    for _ in range(30):
        for decoders, tokens in zip(several, texts, strict=True):
            step(decoders, world, tokens, 100)
    (shared,) = (twins.native.shared("ann"),)
    known = twins.reference.shared("ann")
    assert len(shared.ngrams) == len(known.ngrams) and len(shared.answers) == len(known.answers)
    assert isinstance(shared, NativeShared) and isinstance(known, SharedKnowledge)
    assert shared.answers.tokens == known.answers.tokens and shared.answers.pairs == known.answers.pairs
    assert list(shared.answers.pairs) == list(known.answers.pairs), "the oldest come first"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_memory_is_bounded_alike(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest contexts and answers go first, and those at positions that the text has passed."""
    for name, bound in (
        ("TEXT_CAPACITY", 70), ("WINDOW_CAPACITY", 50), ("MOST_ANSWERED_PLACES", 30), ("MOST_ANSWERS", 40),
    ):  # fmt: skip
        monkeypatch.setattr(drafter, name, bound)
    twins = Twins(None, None, None)
    for seed in range(4):
        run(twins, Auto(rows=40, max_window=4), seed, 150, temperature, None)


def test_plain_steps_are_learnt_when_speculation_begins_anew() -> None:
    twins = Twins(CURVES["slow host"], None, None)
    run(twins, Auto(), 3, 400, 0.0, None)
    for history_ in (twins.native, twins.reference):
        assert history_.profile(Auto(), 0.0).account.effort is not None


@pytest.mark.parametrize("num_rows", [1, 500])
def test_a_drafter_frees_its_memory(num_rows: int) -> None:
    make: Callable[[], Any] = lambda: DraftHistory().drafter(Auto(rows=num_rows, max_rows=num_rows), [1], 0.0, None)  # noqa: E731
    for _ in range(50):
        assert make().grow(None, 5, float("inf")).tokens.tolist() == [1]
