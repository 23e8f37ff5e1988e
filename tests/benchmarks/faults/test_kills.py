"""Kills at random: which ranks are killed, and when."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from benchmarks.faults.kills import KillPlan, plans
from benchmarks.faults.requests import KINDS
from tests.benchmarks.faults.streams import streamed


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_kills_hit_the_first_rank_the_last_and_all_others_in_every_kind_and_phase(num_ranks: int) -> None:
    drawn = list(islice(plans(num_ranks, seed=0), 20))
    assert [plan.victim for plan in drawn[:2]] == [0, num_ranks - 1]
    assert {plan.victim for plan in drawn} == set(range(num_ranks))
    assert {(plan.kind, plan.phase) for plan in drawn} == {(k, p) for k in KINDS for p in ("prefill", "decode")}
    assert Counter(plan.phase for plan in drawn) == {"prefill": 10, "decode": 10}
    assert drawn == list(islice(plans(num_ranks, seed=0), 20)) != list(islice(plans(num_ranks, seed=1), 20))


def test_moments_lie_within_the_stream() -> None:
    undisturbed = streamed(*(0.1 * number for number in range(1, 41)))
    for progress, event in ((0.0, 1), (0.5, 16), (0.999, 31)):
        assert KillPlan("greedy", "decode", 0, progress, 0.5).moment(undisturbed).event == event
    moment = KillPlan("greedy", "prefill", 0, 0.9, 0.5).moment(undisturbed)
    assert moment.event == 0 and moment.fraction < 0.5
