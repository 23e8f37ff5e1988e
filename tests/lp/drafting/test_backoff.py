"""When a decoder pauses speculation, and for how long."""

from __future__ import annotations

from collections.abc import Callable

from lp.drafting.backoff import (
    LONGEST_PAUSE,
    PROBE_STEPS,
    SHORTEST_PAUSE,
    TRIAL_STEPS,
    SharedBackoff,
    SpeculationBackoff,
)
from lp.step_cost import StepCost, StepTimes

CPU = StepCost(StepTimes((1, 2, 64), (0.010, 0.020, 0.060)), 64)


def pauses(backoff: SpeculationBackoff, num_steps: int, step: Callable[[int], tuple[int, float]]) -> list[int]:
    """Lengths of the pauses in `num_steps` steps. step: tokens and seconds of a speculative step, by its number."""
    found = []
    for number in range(num_steps):
        if backoff.num_left:
            backoff.took_plain_step()
            continue
        backoff.took_speculative_step(*step(number))
        if backoff.num_left:
            found.append(backoff.num_left)
    return found


def test_pauses_grow_as_long_as_nothing_is_gained() -> None:
    found = pauses(SpeculationBackoff(CPU, SharedBackoff()), 600, lambda number: (1, 0.010))
    assert found[:4] == [SHORTEST_PAUSE, 32, LONGEST_PAUSE, LONGEST_PAUSE] and max(found) == LONGEST_PAUSE
    assert TRIAL_STEPS + len(found) * PROBE_STEPS < 0.1 * 600


def test_speculation_pauses_if_it_costs_more_than_it_yields() -> None:
    assert pauses(SpeculationBackoff(CPU, SharedBackoff()), 100, lambda number: (2, 0.025))
    assert not pauses(SpeculationBackoff(CPU, SharedBackoff()), 100, lambda number: (2, 0.015))


def test_once_speculation_pays_off_pauses_end_and_later_ones_begin_short() -> None:
    backoff = SpeculationBackoff(CPU, SharedBackoff())
    assert pauses(backoff, 100, lambda number: (1, 0.010))
    while backoff.num_left:
        backoff.took_plain_step()
    assert not pauses(backoff, 200, lambda number: (3, 0.020))
    assert pauses(backoff, 400, lambda number: (1, 0.010))[0] == SHORTEST_PAUSE


def test_there_is_no_pause_where_every_step_costs_the_same() -> None:
    flat = StepCost(StepTimes.flat(), 64)
    assert not pauses(SpeculationBackoff(flat, SharedBackoff()), 500, lambda number: (1, 1.0))


def test_a_request_gets_a_shorter_trial_if_speculation_failed_in_the_one_before() -> None:
    shared = SharedBackoff()
    pauses(SpeculationBackoff(CPU, shared), 100, lambda number: (1, 0.010))
    assert pauses(SpeculationBackoff(CPU, shared), PROBE_STEPS, lambda number: (1, 0.010)) == [SHORTEST_PAUSE]
    pauses(SpeculationBackoff(CPU, shared), 100, lambda number: (3, 0.020))
    assert not pauses(SpeculationBackoff(CPU, shared), TRIAL_STEPS - 1, lambda number: (1, 0.010))
