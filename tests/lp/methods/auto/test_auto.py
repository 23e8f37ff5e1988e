"""decode=auto on rule models: each source finds its drafts, and little time is lost where no draft can be right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lp.drafting.history import DraftHistory
from lp.methods.auto.method import Auto
from lp.step_cost import Extras, StepTimes
from tests.lp.drafting.rule_models import by_rule, counting, decode, sums, unguessable

CURVES = {
    "memory-bound": StepTimes((1, 64, 128), (0.010, 0.0102, 0.011)),
    "a CPU": StepTimes((1, 4, 8, 16, 32, 64, 128), (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064)),
    "no row is free": StepTimes((1, 2, 128), (0.010, 0.015, 0.640)),
}
SOURCES = ("window_drafts", "suffix_drafts", "recycled_drafts")


def with_sources(*names: str, **settings: int) -> Auto:
    """Settings with these sources and no others."""
    return Auto(**{name: name in names for name in SOURCES}, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_most_three_percent_are_lost_on_text_that_cannot_be_guessed(curve: str, temperature: float) -> None:
    times = CURVES[curve]
    run = decode(unguessable, 800, Auto(), times, temperature=temperature)
    assert times.at(1) * run.num_new / run.seconds > 0.97


@pytest.mark.parametrize(("host_s", "least", "most"), [(0.001, 0.8, 1.0), (0.00001, 0.0, 0.0)])
def test_steps_on_text_that_cannot_be_guessed_ask_for_no_candidates(host_s: float, least: float, most: float) -> None:
    """Except where the work on the host takes less than half of what may be lost."""
    times = replace(CURVES["a CPU"], extras=Extras(host_step=host_s))
    run = decode(unguessable, 800, Auto(), times)
    assert least * 800 <= run.num_plain <= most * 800


@pytest.mark.parametrize("curve", CURVES)
def test_text_that_can_be_guessed_is_faster(curve: str) -> None:
    times = CURVES[curve]
    run = decode(counting, 600, Auto(), times)
    assert times.at(1) * run.num_new / run.seconds > (1.2 if curve == "no row is free" else 2)


def test_drafting_starts_again_when_the_text_becomes_easy() -> None:
    times, history = CURVES["a CPU"], DraftHistory(CURVES["a CPU"])
    decode(unguessable, 400, Auto(), times, history)
    run = decode(counting, 300, Auto(), times, history)
    assert times.at(1) * run.num_new / run.seconds > 1.5


def test_suffixes_find_repetitions() -> None:
    run = decode(counting, 200, with_sources("suffix_drafts", rows=16))
    assert run.tokens_per_step > 2.5
    assert set(run.accepted) == {"suffix"}


def test_the_window_finds_drafts_in_a_text_without_repetitions() -> None:
    """Only Jacobi iterations can find drafts here."""
    first_ten = [1, 5, 7, 11, 13, 17, 19, 23, 29, 31]
    model = by_rule(lambda path: (first_ten[path[-1] % 10] + path[-1]) % 900)
    run = decode(model, 150, with_sources("window_drafts", rows=64, max_window=8))
    assert run.accepted["window"] > 10 and set(run.accepted) == {"window"}


def test_answers_of_wrong_rows_are_recycled_too() -> None:
    run = decode(counting, 200, with_sources("recycled_drafts", rows=32))
    assert run.tokens_per_step > 2
    assert set(run.accepted) == {"recycled"}


@pytest.mark.parametrize("sources", [(), *((name,) for name in SOURCES), SOURCES], ids=str)
def test_a_source_that_is_off_proposes_nothing(sources: tuple[str, ...]) -> None:
    run = decode(counting, 100, with_sources(*sources, rows=40))
    assert {f"{name}_drafts" for name in run.proposed} <= set(sources)
    if not sources:
        assert set(run.rows) == {1}


@pytest.mark.parametrize("rows", [1, 2, 8, 64])
def test_rows_bound_every_step(rows: int) -> None:
    for settings in (Auto(rows=rows), Auto(max_rows=rows)):
        run = decode(counting, 120, settings, CURVES["memory-bound"])
        assert max(run.rows) <= rows
    assert rows < 8 or max(run.rows) > rows / 2


def test_the_same_requests_in_the_same_order_give_the_same_states() -> None:
    def states() -> list[int]:
        history, found = DraftHistory(CURVES["a CPU"]), list[int]()
        for model in (sums, counting, unguessable):
            for temperature in (0.0, 0.7):
                run = decode(model, 80, Auto(), None, history, temperature=temperature, fingerprints=True)
                found += run.fingerprints
        return found

    first = states()
    assert first == states()
    assert all(0 <= fingerprint < 2**31 for fingerprint in first)


def test_the_fingerprint_depends_on_what_was_learnt_before() -> None:
    fresh, taught = DraftHistory(), DraftHistory()
    decode(counting, 50, Auto(), history=taught)
    first, second = (
        decode(counting, 30, Auto(), history=known, fingerprints=True).fingerprints[0] for known in (fresh, taught)
    )
    assert first != second


def test_a_new_request_starts_with_estimates_but_no_text_of_earlier_requests() -> None:
    history = DraftHistory()
    settings = with_sources("suffix_drafts", rows=16)
    decode(counting, 300, settings, history=history)
    estimates = history.profile(settings, 0.0).estimates
    kinds = history.profile(settings, 0.0).kinds
    assert list(estimates.probabilities) != kinds.priors
    run = decode(counting, 30, settings, history=history, prompt=[40])
    assert set(run.rows) == {1}, "nothing of the first request's text is known to the second"


@pytest.mark.parametrize(
    ("first", "second", "shared", "is_known"),
    [("ann", "ann", True, True), ("ann", "bob", True, False), (None, None, True, False), ("ann", "ann", False, False)],
)
def test_only_requests_of_the_same_owner_share_drafts(
    first: str | None, second: str | None, shared: bool, is_known: bool
) -> None:
    history = DraftHistory()
    settings = Auto(False, False, False, shared_drafts=shared, rows=16)
    decode(sums, 200, settings, history=history, owner=first)
    run = decode(sums, 200, settings, history=history, owner=second)
    assert (run.accepted["shared"] > 50) == is_known
    assert (run.tokens_per_step > 2) == is_known


def test_the_owners_not_seen_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lp.drafting.history.MOST_OWNERS", 2)
    history = DraftHistory()
    settings = Auto(False, False, False, shared_drafts=True, rows=16)
    for owner in ("ann", "bob", "cid"):
        decode(sums, 100, settings, history=history, owner=owner)
    for owner, is_known in (("cid", True), ("bob", True), ("ann", False)):
        shared = history.shared(owner)
        assert (len(shared.ngrams) > 0) == (len(shared.answers) > 0) == is_known


def test_a_prompt_of_one_token_is_enough() -> None:
    run = decode(counting, 150, Auto(rows=16), prompt=[3])
    assert run.tokens_per_step > 1
