"""A corpus whose drafts are never accepted rests for longer and longer; one that helps never does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, groupby, repeat

import pytest

from lp.drafting.account import Kinds
from lp.drafting.corpus import FIRST_REST, LONGEST_REST, TRIAL_STEPS, Corpus, build_corpus
from lp.drafting.history import DraftHistory
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.method import Auto
from lp.platform.library import library
from tests.lp.drafting.reference.drafter import reference_history
from tests.lp.drafting.reference.sources import CorpusRest
from tests.lp.drafting.rule_models import answers, counting

HOW = Auto(window_drafts=False, recycled_drafts=False, rows=16)
ALONE = replace(HOW, suffix_drafts=False)  # no other source of drafts
PROMPT = list(range(50)) * 2
# After every two numbers of the prompt comes another one than there.
MISLEADING = [[number, (number + 1) % 50, (number + 30) % 50] for number in range(50)]


def lengths(rest: CorpusRest, rights: Iterable[int]) -> list[tuple[bool, int]]:
    """Whether the corpus rests, and for how many steps in a row. rights: its accepted drafts in each step."""
    states = []
    for right in rights:
        states.append(rest.is_resting)
        rest.took_step(right)
    return [(is_resting, len(list(steps))) for is_resting, steps in groupby(states)]


def test_rests_get_longer_while_nothing_helps() -> None:
    found = lengths(CorpusRest(), repeat(0, 1200))
    rests = [number for is_resting, number in found[:-1] if is_resting]
    assert rests[:5] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST, LONGEST_REST, LONGEST_REST]
    assert {number for is_resting, number in found[:-1] if not is_resting} == {TRIAL_STEPS}


def test_one_accepted_draft_in_each_trial_is_enough() -> None:
    assert lengths(CorpusRest(), [*repeat(0, TRIAL_STEPS - 1), 1] * 9) == [(False, 9 * TRIAL_STEPS)]


def test_a_trial_that_helps_makes_the_next_rest_short_again() -> None:
    helped = CorpusRest()
    for right in chain(repeat(0, TRIAL_STEPS + FIRST_REST), repeat(1, TRIAL_STEPS), repeat(0, TRIAL_STEPS)):
        helped.took_step(right)
    assert lengths(helped, repeat(0, 2 * FIRST_REST))[0] == (True, FIRST_REST)


def run(how: Auto, corpus: Corpus, num_steps: int, by_library: bool) -> list[bool]:
    """Counts to 49 over and over; says of each step with drafts whether the corpus proposed something before it."""
    history = DraftHistory(corpus=corpus) if by_library else reference_history(corpus=corpus)
    decoder = AutoDecoder(how, PROMPT, 0, 0.0, history)
    kinds, tokens, proposed = Kinds(how).sources, list(PROMPT), []
    for _ in range(num_steps):
        tree = decoder.plan(tokens, room=100, wanted=100)
        assert len(tree) > 1, "else it is no step with drafts"
        found = {kinds[kind] for kind, _ in decoder.drafter.propose(tokens[-2:], 0)}
        proposed.append("corpus" in found)
        tokens += decoder.commit(tokens, answers(counting, tree, tokens, decoder.num_candidates))[0].tokens
    return proposed


@pytest.mark.parametrize("texts", [MISLEADING, [PROMPT]], ids=["misleading", "what the text says itself"])
@pytest.mark.parametrize("by_library", [False, True], ids=["reference", "library"])
def test_a_corpus_that_adds_nothing_is_not_searched_while_it_rests(texts: list[list[int]], by_library: bool) -> None:
    if by_library and library() is None:
        pytest.skip("there is no C++ compiler")
    proposed = run(HOW, build_corpus("test", 1000, texts), 3 * TRIAL_STEPS + 3 * FIRST_REST, by_library)
    assert [(is_awake, len(list(steps))) for is_awake, steps in groupby(proposed)] == [
        (True, TRIAL_STEPS), (False, FIRST_REST), (True, TRIAL_STEPS), (False, 2 * FIRST_REST), (True, TRIAL_STEPS),
    ]  # fmt: skip


@pytest.mark.parametrize("by_library", [False, True], ids=["reference", "library"])
def test_a_corpus_that_helps_is_searched_in_every_step(by_library: bool) -> None:
    if by_library and library() is None:
        pytest.skip("there is no C++ compiler")
    assert all(run(ALONE, build_corpus("test", 1000, [PROMPT]), 3 * TRIAL_STEPS, by_library))
