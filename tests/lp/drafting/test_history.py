"""Estimates approach the observed frequencies and forget old observations; they go on where ranks change."""

from __future__ import annotations

import json
import random
from dataclasses import astuple

import pytest

from lp import Auto
from lp.drafting.account import Estimates
from lp.drafting.history import MOST_LEARNT, DraftHistory, Learnt, merge
from tests.lp.drafting.reference.sources import ranked


def test_estimates_start_as_the_priors() -> None:
    assert list(Estimates([0.5, 0.25]).probabilities) == [0.5, 0.25]


def test_the_share_of_right_candidates_is_learnt_by_rank() -> None:
    rng = random.Random(0)
    estimates = Estimates([0.9, 0.9, 0.9])
    for _ in range(2000):
        estimates.learn(0, [1, 2, 3], rng.choices([1, 2, 9], [0.6, 0.3, 0.1])[0])
    assert list(estimates.probabilities) == pytest.approx([0.6, 0.3, 0.0], abs=0.1)


def test_kinds_that_were_not_proposed_learn_nothing() -> None:
    estimates = Estimates([0.5, 0.5, 0.5, 0.5])
    estimates.learn(1, [7, 8], 8)
    assert estimates.probabilities[0] == estimates.probabilities[3] == 0.5
    assert estimates.probabilities[1] < 0.5 < estimates.probabilities[2]


def test_what_a_surer_list_has_proposed_does_not_count() -> None:
    estimates = Estimates([0.5, 0.5])
    estimates.learn(0, [7, 8], 7, rival=7)
    assert estimates.probabilities[0] == 0.5 and estimates.probabilities[1] < 0.5


def test_a_source_that_is_right_only_where_a_surer_one_agrees_is_not_believed_where_it_disagrees() -> None:
    """Alone, the second source would be right two times out of three."""
    rng, kinds = random.Random(0), [0.5, 0.5, 0.25, 0.25]
    estimates = Estimates(kinds)
    for _ in range(600):
        proposals = ranked([(0, [1]), (1, [rng.choice([1, 1, 2])])], estimates.probabilities, 2)
        best = next(candidates[0] for first, candidates in proposals if first < 2)
        for first, candidates in proposals:
            estimates.learn(first, candidates, 1, None if first < 2 else best)
    assert estimates.probabilities[0] > 0.95 and estimates.probabilities[3] < 0.05


def test_a_change_of_the_text_is_noticed_within_a_few_hundred_trials() -> None:
    estimates = Estimates([0.5])
    for _ in range(1000):
        estimates.learn(0, [1], 1)
    for _ in range(300):
        estimates.learn(0, [1], 2)
    assert estimates.probabilities[0] < 0.1


AUTO, WITHOUT_WINDOW = Auto(), Auto(window_drafts=False)


def history_after(*trials: tuple[Auto, int, int]) -> DraftHistory:
    """A history that has seen so many trials of the first kind, and so many right ones, with these settings."""
    history = DraftHistory()
    for settings, number, right in trials:
        estimates = history.profile(settings, 0.0).estimates
        for trial in range(number):
            estimates.learn(0, [trial < right], 1)
    return history


def told(history: DraftHistory) -> list[Learnt]:
    """What a history tells, as it arrives."""
    return json.loads(json.dumps(history.learnt()))


def test_another_history_goes_on_with_what_was_learnt() -> None:
    before = history_after((AUTO, 50, 50), (WITHOUT_WINDOW, 50, 0))
    after = DraftHistory().following(None, 1, merge([told(before)]), keep_shared=False)
    for settings in (AUTO, WITHOUT_WINDOW):
        ends = [list(history.profile(settings, 0.0).estimates.probabilities) for history in (before, after)]
        assert ends[1] == pytest.approx(ends[0], rel=1e-12)
    fresh = DraftHistory().profile(AUTO, 1.0).estimates.probabilities
    assert list(after.profile(AUTO, 1.0).estimates.probabilities) == list(fresh), "another temperature"
    likely, unlikely = (after.profile(settings, 0.0).estimates.probabilities[0] for settings in (AUTO, WITHOUT_WINDOW))
    assert likely > 0.9 and unlikely < 0.1


def test_what_nobody_uses_goes_on_all_the_same() -> None:
    learnt = merge([told(history_after((AUTO, 50, 50)))])
    idle = DraftHistory().following(None, 1, learnt, keep_shared=False)
    assert merge([told(idle)]) == learnt


def test_ranks_go_on_with_the_trials_of_all() -> None:
    """One that has seen little counts for little, and one that has seen nothing for nothing."""
    ranks = [history_after((AUTO, 90, 90)), history_after((AUTO, 10, 0)), DraftHistory()]
    (learnt,) = merge([told(rank) for rank in ranks])
    one, other = (rank.profile(AUTO, 0.0).estimates for rank in ranks[:2])
    share = (one.hits[0] + other.hits[0]) / (one.trials[0] + other.trials[0])
    assert learnt.hits[0] / learnt.trials[0] == pytest.approx(share) and learnt.trials[0] == one.trials[0]
    assert learnt.key == list(json.loads(json.dumps(ranks[0].learnt()[0].key)))


def test_only_the_newest_settings_are_told() -> None:
    history = history_after(*((Auto(candidates=number), 1, 1) for number in range(1, MOST_LEARNT + 4)))
    assert len(history.learnt()) == MOST_LEARNT
    assert told(history)[-1][0] == [*astuple(Auto(candidates=MOST_LEARNT + 3)), 0]


@pytest.mark.parametrize("keep_shared", [True, False])
def test_what_an_owner_shares_goes_on_where_it_may(keep_shared: bool) -> None:
    before = DraftHistory()
    shared = before.shared("me")
    assert (before.following(None, 1, [], keep_shared).shared("me") is shared) == keep_shared
