"""The number of drafts of each sequence is the best for all of them together, and the same on every rank."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp.decoder import ProposedDrafts
from lp.platform.library import library, python_alone
from lp.request import Sequence
from lp.sampling.settings import Sampling
from lp.scheduling.planner import (
    Prefill,
    StepTime,
    best_counts,
    best_first,
    best_number,
    plan_trees,
)  # fmt: skip
from lp.scheduling.scheduler import FARTHEST, most_rows_within
from lp.step_cost import CACHED, USUAL_ROWS, Extras, StepTimes, descending

ODDS = st.lists(st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 0.75, 0.8, 1.0]), max_size=4)
NO_PROMPTS = Prefill()
TIMES = StepTimes((1, 4, 16, 64), (0.010, 0.011, 0.015, 0.047))


@dataclass
class Stream:
    """A generation whose offers are given. taken: the number of its drafts; None if it planned alone."""

    offered: ProposedDrafts
    temperature: float = 0.0
    length: int = 10
    loads: list[int] = field(default_factory=list)
    taken: int | None = None
    decoder: Any = field(default_factory=lambda: SimpleNamespace(prepare=None))

    @property
    def sequence(self) -> Sequence:
        return Sequence("", [0] * self.length, 1, Sampling(temperature=self.temperature, seed=0))

    def plan(self, room: int) -> Any:
        return "planned alone"

    def propose(self, room: int, load: int) -> ProposedDrafts:
        self.loads.append(load)
        return self.offered

    def build_tree(self, num_drafts: int) -> Any:
        self.taken = num_drafts
        return num_drafts


def together(
    streams: list[Stream], times: StepTimes | None, num_parts: int = 1, prefill: Prefill = NO_PROMPTS
) -> list[Any]:
    generations: list[Any] = list(streams)
    return list(plan_trees(generations, [99] * len(streams), times, num_parts, prefill))


def offer(*odds: float, num_rows: int = 1) -> Stream:
    return Stream(ProposedDrafts(num_rows, odds))


def best_by_hand(all_odds: list[list[float]], seconds: list[float]) -> float:
    """The most tokens per second of any choice of a prefix of each sequence's drafts."""
    choices = itertools.product(*(range(len(odds) + 1) for odds in all_odds))
    return max(
        (len(all_odds) + sum(sum(odds[:count]) for odds, count in zip(all_odds, counts, strict=True)))
        / seconds[sum(counts)]
        for counts in choices
    )


def speed(all_odds: list[list[float]], seconds: list[float]) -> float:
    """The expected tokens per second of the number of drafts that is chosen."""
    offers = [ProposedDrafts(1, descending(odds)) for odds in all_odds]
    drafts = best_first(offers)
    number = best_number(len(offers), drafts.odds, seconds)
    counts = [sum(drafts.owners[:number] == place) for place in range(len(offers))]
    expected = len(offers) + sum(sum(odds[:count]) for odds, count in zip(all_odds, counts, strict=True))
    return expected / seconds[number]


@given(st.lists(ODDS, min_size=1, max_size=4), st.lists(st.integers(0, 40), min_size=17, max_size=17))
def test_no_other_choice_of_drafts_is_faster(all_odds: list[list[float]], rises: list[int]) -> None:
    """The curve may be any staircase."""
    all_odds = [sorted(odds, reverse=True) for odds in all_odds]
    seconds = [second / 10 for second in itertools.accumulate(rises, initial=10)]
    assert speed(all_odds, seconds) == pytest.approx(best_by_hand(all_odds, seconds))


@given(
    st.lists(st.tuples(ODDS, st.sampled_from([0.0, 1e-5, 0.3])), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 1e-3, 0.1, 0.7]), min_size=25, max_size=25),
    st.floats(0.0, 1.0),
)
def test_the_library_takes_as_many_of_each(
    offered: list[tuple[list[float], float]], rises: list[float], host_s: float
) -> None:
    """Whatever ties there are, and wherever the speed falls and rises again."""
    if library() is None:
        pytest.skip("there is no C++ compiler")
    offers = [ProposedDrafts(1, sorted(odds, reverse=True)) for odds, _ in offered]
    size = sum(len(offer.odds) for offer in offers) + 1
    time = StepTime(np.cumsum([1.0, *rises])[:size], host_s, [row_s for _, row_s in offered])
    counts = best_counts(offers, time)
    with python_alone():
        assert best_counts(offers, time) == counts


@given(st.lists(ODDS, min_size=1, max_size=4), st.floats(0.01, 5.0))
def test_drafts_that_pay_only_with_those_after_them_are_found(all_odds: list[list[float]], row_s: float) -> None:
    """A draft may be likelier than those that must come before it."""
    seconds = [1 + row_s * row for row in range(17)]
    assert speed(all_odds, seconds) == pytest.approx(best_by_hand(all_odds, seconds))


@given(st.lists(st.integers(0, 100).map(lambda percent: percent / 100), max_size=12))
def test_odds_are_put_in_descending_order_without_changing_their_sum(odds: list[float]) -> None:
    found = descending(odds)
    assert len(found) == len(odds) and math.fsum(found) == pytest.approx(math.fsum(odds))
    assert all(first >= second for first, second in itertools.pairwise(found))
    for count in range(len(odds)):  # no run promises more than its drafts yield in the end
        if found[count : count + 1] != found[count - 1 : count]:
            assert math.fsum(found[:count]) == pytest.approx(math.fsum(odds[:count]))


def test_odds_that_descend_stay_as_they_are() -> None:
    assert descending([0.75, 0.5, 0.5, 0.25]) == [0.75, 0.5, 0.5, 0.25]
    assert descending([0.25, 0.75, 0.5]) == [0.5, 0.5, 0.5]


def test_equally_likely_drafts_come_in_the_order_of_their_sequences() -> None:
    drafts = best_first(
        [
            ProposedDrafts(1, [0.5, 0.25]),
            ProposedDrafts(1, []),
            ProposedDrafts(1, [0.75, 0.5, 0.5]),
            ProposedDrafts(3, [0.5]),
        ]
    )
    assert drafts.odds.tolist() == [0.75, 0.5, 0.5, 0.5, 0.5, 0.25] and drafts.owners.tolist() == [2, 0, 2, 2, 3, 0]


def test_the_speed_may_fall_before_it_rises() -> None:
    """One more row doubles the time; the seven after it are free."""
    seconds = [1.0, *[2.0] * 8]
    assert best_number(2, [0.5] * 8, seconds) == 8
    assert best_number(2, [0.5] * 3, seconds) == 0


def test_of_equally_fast_numbers_the_largest_is_taken() -> None:
    assert best_number(1, [1.0, 1.0], [1.0, 2.0, 3.0]) == 2


def test_four_sequences_share_twelve_rows_better_than_three_for_each() -> None:
    """A sequence that is easy to guess gets what the others have no use for."""
    acceptance = (0.95, 0.9, 0.6, 0.3)
    streams = [offer(*(share**depth for depth in range(1, 9))) for share in acceptance]
    stairs = StepTimes((1, 12, 13, 36), (1.0, 1.0, 5.0, 5.0))  # a graph for up to 12 rows
    counts = together(streams, stairs)
    assert sum(counts) == 8 and counts == sorted(counts, reverse=True) and counts[0] > counts[3]

    def expected(numbers: list[int]) -> float:
        return 4 + sum(
            sum(share**depth for depth in range(1, number + 1))
            for share, number in zip(acceptance, numbers, strict=True)
        )

    assert expected(counts) > expected([2, 2, 2, 2]) + 0.9


def test_a_single_sequence_plans_by_itself() -> None:
    streams = [offer(0.9)]
    assert together(streams, TIMES) == ["planned alone"] and not streams[0].loads
    assert together(streams, TIMES, prefill=Prefill(4)) == [1] and streams[0].loads == [1]
    assert together([], TIMES, prefill=Prefill(8)) == []


def test_every_sequence_is_told_how_many_there_are() -> None:
    streams = [offer(0.9), offer(0.2), offer()]
    together(streams, TIMES)
    assert [stream.loads for stream in streams] == [[3]] * 3


def test_more_sequences_leave_each_fewer_drafts() -> None:
    odds = [0.9**depth for depth in range(1, 40)]
    totals = {load: together([offer(*odds) for _ in range(load)], TIMES) for load in (2, 4, 16, 64)}
    means = [sum(counts) / load for load, counts in totals.items()]
    assert means == sorted(means, reverse=True) and means[0] > 2 * means[-1]


def test_drafts_that_are_unlikely_are_left_out_under_load() -> None:
    linear = StepTimes((1, 128), (0.011, 0.138))  # 10 ms and 1 ms a row
    assert together([offer(0.3, 0.2) for _ in range(2)], linear) == [2, 2]
    assert together([offer(0.3, 0.2) for _ in range(64)], linear) == [0] * 64


def test_prompts_rows_count() -> None:
    stairs = StepTimes((1, 16, 17, 32), (1.0, 1.0, 4.0, 4.0))
    assert together([offer(0.5, 0.4), offer(0.5, 0.4)], stairs) == [2, 2]
    assert together([offer(0.5, 0.4), offer(0.5, 0.4)], stairs, prefill=Prefill(12)) == [1, 1]


def test_prompts_do_not_make_drafts_look_cheap() -> None:
    linear = StepTimes((1, 512), (0.011, 0.522))  # 10 ms and 1 ms a row
    odds = (0.3, 0.2, 0.15, 0.12, 0.06, 0.04)
    assert together([offer(*odds), offer(*odds)], linear) == [2, 2]
    for num_computed in (16, 200):
        assert together([offer(*odds), offer(*odds)], linear, prefill=Prefill(num_computed)) == [2, 2]
        assert together([offer(0.3, 0.05)], linear, prefill=Prefill(num_computed)) == [1]
    steeper = StepTimes((1, 8, 108), (0.010, 0.010, 1.010))  # rows that are free until a prompt takes their place
    assert together([offer(0.9, 0.9)], steeper, prefill=Prefill(20)) == [0]


def test_prompts_that_wait_leave_fewer_drafts() -> None:
    linear = StepTimes((1, 512), (0.011, 0.522))  # 10 ms and 1 ms a row
    odds = [0.9**depth for depth in range(1, 20)]
    totals = [
        sum(together([offer(*odds) for _ in range(4)], linear, prefill=Prefill(16, waiting))) for waiting in range(7)
    ]
    assert totals[0] == totals[1] == sum(together([offer(*odds) for _ in range(4)], linear)), "one prompt is fed soon"
    assert totals == sorted(totals, reverse=True) and totals[5] < totals[1] / 2
    assert totals[5] == totals[6] > 0, "all rows pay the same: 1.3 ms, and a token of a plain step costs 1.3 ms as well"


def test_rows_that_are_there_in_any_case_count() -> None:
    stairs = StepTimes((1, 16, 17, 32), (1.0, 1.0, 4.0, 4.0))
    assert together([offer(num_rows=9), offer(0.5, 0.4, 0.4, num_rows=5)], stairs) == [0, 2]


def test_rows_are_dealt_out_to_ranks() -> None:
    stairs = StepTimes((1, 8, 9, 64), (1.0, 1.0, 4.0, 4.0))
    streams = [offer(*[0.5] * 8) for _ in range(2)]
    assert sum(together(streams, stairs)) == 6
    on_two = replace(stairs, num_parts=2, alone=stairs)
    assert sum(together(streams, on_two, num_parts=2)) > 6
    assert sum(together(streams, on_two, num_parts=1)) == 6, "a rank that is left alone has its own curve"


def test_dear_sequences_and_long_caches_make_drafts_worth_more() -> None:
    """They make a step longer that is taken in any case."""
    linear = StepTimes((1, 128), (0.002, 0.129))
    streams = [offer(0.4), offer(0.4)]
    assert together(streams, linear) == [0, 0]
    assert together(streams, replace(linear, extras=Extras(sequence=0.01))) == [1, 1]
    cached = replace(linear, extras=Extras(thousand_cached=0.01))
    assert together(streams, cached) == [0, 0]
    assert together([replace(stream, length=CACHED + 1000) for stream in streams], cached) == [1, 1]


def test_rows_of_sampled_sequences_cost_what_sampling_costs() -> None:
    times = StepTimes((1, 128), (0.010, 0.010), extras=Extras(sampled_row=0.006, host_row=0.0001))
    greedy, sampled = offer(0.6), offer(0.5)
    assert together([sampled, greedy], times) == [1, 1]
    sampled.temperature = 0.8
    assert together([sampled, greedy], times) == [0, 1]


def test_without_step_times_a_step_has_a_moderate_number_of_rows() -> None:
    counts = together([offer(*[0.5] * 31), offer(0.9, 0.1)], None)
    assert counts == [29, 1]
    assert together([offer(*[0.5] * 31) for _ in range(40)], None) == [0] * 40


@given(st.lists(ODDS, min_size=2, max_size=5))
def test_the_choice_is_the_same_whenever_it_is_made(all_odds: list[list[float]]) -> None:
    streams = [offer(*descending(odds)) for odds in all_odds]
    assert together(streams, TIMES) == together(streams, StepTimes.from_dict(TIMES.to_dict()))


@pytest.mark.parametrize(("factor", "rows"), [(0.5, 16), (1.0, 16), (2.0, 61), (4.01, 151), (1000.0, 64 * FARTHEST)])
def test_the_most_rows_within_some_usual_steps(factor: float, rows: int) -> None:
    times = StepTimes((1, 4, 16, 64), (0.010, 0.011, 0.015, 0.031))
    assert most_rows_within(times, factor) == rows
    if 16 < rows < 64 * FARTHEST:
        assert times.at(rows) <= factor * times.at(USUAL_ROWS) + 1e-12 < times.at(rows + 1)


def test_any_number_of_rows_takes_no_longer_on_a_flat_curve() -> None:
    assert most_rows_within(StepTimes((1, 32), (0.1, 0.1)), 2.0) == 32 * FARTHEST
    assert most_rows_within(StepTimes.flat(), 2.0) == USUAL_ROWS
