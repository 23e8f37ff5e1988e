"""When a decoder rests from looking ahead, and for how long."""

from __future__ import annotations

from collections.abc import Callable

from lp.drafting.backoff import GLANCE, LONGEST, SHORTEST, TRIAL, SharedBackoff, SpeculationBackoff
from lp.step_cost import StepCost, StepTimes

CPU = StepCost(StepTimes((1, 2, 64), (0.010, 0.020, 0.060)), 64)


def rests(rest: SpeculationBackoff, num_steps: int, look: Callable[[int], tuple[int, float]]) -> list[int]:
    """Lengths of the rests in so many steps; look: tokens and seconds of a step that looks ahead, by its number."""
    found = []
    for number in range(num_steps):
        if rest.num_left:
            rest.took_plain_step()
            continue
        rest.looked_ahead(*look(number))
        if rest.num_left:
            found.append(rest.num_left)
    return found


def test_rests_grow_as_long_as_nothing_is_gained() -> None:
    found = rests(SpeculationBackoff(CPU, SharedBackoff()), 600, lambda number: (1, 0.010))
    assert found[:4] == [SHORTEST, 32, LONGEST, LONGEST] and max(found) == LONGEST
    assert TRIAL + len(found) * GLANCE < 0.1 * 600


def test_drafts_that_cost_more_than_they_yield_are_rested_from() -> None:
    assert rests(SpeculationBackoff(CPU, SharedBackoff()), 100, lambda number: (2, 0.025))
    assert not rests(SpeculationBackoff(CPU, SharedBackoff()), 100, lambda number: (2, 0.015))


def test_once_it_pays_there_are_no_more_rests_and_later_ones_begin_short() -> None:
    rest = SpeculationBackoff(CPU, SharedBackoff())
    assert rests(rest, 100, lambda number: (1, 0.010))
    while rest.num_left:
        rest.took_plain_step()
    assert not rests(rest, 200, lambda number: (3, 0.020))
    assert rests(rest, 400, lambda number: (1, 0.010))[0] == SHORTEST


def test_there_is_no_rest_where_every_step_costs_the_same() -> None:
    assert not rests(SpeculationBackoff(StepCost(StepTimes.flat(), 64), SharedBackoff()), 500, lambda number: (1, 1.0))


def test_the_next_request_looks_less_long_where_the_last_found_nothing() -> None:
    shared = SharedBackoff()
    rests(SpeculationBackoff(CPU, shared), 100, lambda number: (1, 0.010))
    assert rests(SpeculationBackoff(CPU, shared), GLANCE, lambda number: (1, 0.010)) == [SHORTEST]
    rests(SpeculationBackoff(CPU, shared), 100, lambda number: (3, 0.020))
    assert not rests(SpeculationBackoff(CPU, shared), TRIAL - 1, lambda number: (1, 0.010))
