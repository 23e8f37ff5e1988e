"""The library's drafters and their reference stay the same, in whatever order requests begin, go on and end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule, run_state_machine_as_test

from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.method import Auto
from lp.platform.library import library
from tests.lp.drafting.test_drafter import CURVES, VOCAB_SIZE, Twins, World, make_corpus, make_index, step

SETTINGS = st.integers(1, 70).flatmap(
    lambda most: st.builds(
        Auto,
        window_drafts=st.booleans(), suffix_drafts=st.booleans(), recycled_drafts=st.booleans(),
        shared_drafts=st.booleans(), index_drafts=st.booleans(), corpus_drafts=st.booleans(), max_rows=st.just(most),
        rows=st.sampled_from([0, most]), max_window=st.integers(0, 9), ngram=st.integers(2, 7),
        candidates=st.integers(1, 9),
    )
)  # fmt: skip


@dataclass
class Request:
    """A request of both twins. left: the tokens that it may still get."""

    decoders: list[AutoDecoder]
    tokens: list[int]
    left: int


class Requests(RuleBasedStateMachine):
    """Requests of several owners that take turns, with few settings, so that they share what was learnt."""

    requests: Bundle[Request] = Bundle("requests")
    twins: Twins
    settings: list[Auto]

    @initialize(
        curve=st.sampled_from(sorted(CURVES)),
        has_index=st.booleans(),
        has_corpus=st.booleans(),
        settings=st.lists(SETTINGS, min_size=1, max_size=2),
    )
    def start(self, curve: str, has_index: bool, has_corpus: bool, settings: list[Auto]) -> None:
        index = make_index(5, seed=0) if has_index else None
        corpus = make_corpus(World(1, 0.0), seed=0) if has_corpus else None
        self.twins, self.settings = Twins(CURVES[curve], index, 3 if curve == "ranks" else None, corpus), settings

    @rule(
        target=requests,
        which=st.integers(0, 1),
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
        temperature=st.sampled_from([0.0, 0.7]),
        owner=st.sampled_from([None, "ann", "bob"]),
        num_tokens=st.integers(1, 90),
    )
    def begin(self, which: int, prompt: list[int], temperature: float, owner: str | None, num_tokens: int) -> Request:
        how = self.settings[which % len(self.settings)]
        return Request(self.twins.decoders(how, list(prompt), temperature, owner), list(prompt), num_tokens)

    @rule(
        request=requests,
        num_steps=st.integers(1, 8),
        surprise=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        load=st.sampled_from([0, 0, 1, 2, 5, 40]),
    )
    def go_on(self, request: Request, num_steps: int, surprise: float, load: int) -> None:
        world = World(1, surprise)
        for _ in range(num_steps):
            if request.left:
                before = len(request.tokens)
                step(request.decoders, world, request.tokens, request.left, load)
                request.left -= len(request.tokens) - before

    @rule(request=consumes(requests))
    def end(self, request: Request) -> None:
        request.decoders.clear()
        request.left = 0


def test_requests_that_take_turns() -> None:
    if library() is None:
        pytest.skip("there is no C++ compiler")
    run_state_machine_as_test(Requests, settings=settings(max_examples=40, stateful_step_count=25))
