"""Who verifies a step and who drafts ahead of it follows from step times and from what such drafts have yielded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lp.decoder import AheadOf, AheadYields, StepYield
from lp.methods.draft_model.asking import MOST_STEPS, PRIOR_AHEAD, PRIOR_OTHERS, AheadWorth
from lp.request import Sequence as TokenSequence
from lp.sampling.settings import Sampling
from lp.scheduling.planner import STEPS_PER_DECISION, Roles
from lp.step_cost import StepTimes

# Two parts compute few rows as fast as one, and many rows nearly twice as fast.
ONE = StepTimes((1, 16, 64, 256), (0.010, 0.011, 0.015, 0.060))
TWO = StepTimes((1, 16, 64, 256), (0.010, 0.0105, 0.012, 0.032), 2, ONE)


def yields(ahead: float, others: float = 1.5, rows: float = 8, longer: float = 0.0) -> AheadYields:
    """Steps that yield so many tokens, if others draft ahead of them and if not, with trees of so many rows."""
    return AheadYields(StepYield(ahead, rows), StepYield(others, rows), longer)


@dataclass
class Decoding:
    """A request that decodes, whose trees have so many rows. yields: of a decoder that others draft ahead for."""

    likely_rows: int
    yields: AheadYields | None = None
    expected: float = 1.5

    @property
    def decoder(self) -> Any:
        return self

    @property
    def sequence(self) -> TokenSequence:
        return TokenSequence("", [1] * 20, 10, Sampling(temperature=0.0, seed=0))

    def ahead_of(self, tokens: Sequence[int]) -> AheadOf | None:
        decoder: Any = self
        return None if self.yields is None else AheadOf(decoder, tokens)


def are_ahead(states: Sequence[Decoding], times: StepTimes | None = TWO, roles: Roles | None = None) -> bool:
    given: Any = states
    return (roles or Roles(2)).are_ahead(given, times)


def decisions(states: Sequence[Decoding], number: int, times: StepTimes = TWO) -> list[bool]:
    """So many decisions, one after the other."""
    roles = Roles(2)
    return [are_ahead(states, times, roles) for _ in range(number * STEPS_PER_DECISION)][::STEPS_PER_DECISION]


def test_all_verify_where_nobody_has_drafts_of_the_draft_model() -> None:
    assert not are_ahead([Decoding(8), Decoding(64)]) and not are_ahead([Decoding(8)], None) and not are_ahead([])


@pytest.mark.parametrize(
    ("number", "rows", "ahead", "longer", "expected"),
    [
        (1, 8, 2.5, 0.0, True),
        (1, 1, 1.5, 0.0, True),  # it costs nothing
        (1, 8, 1.4, 0.0, False),
        (1, 64, 2.0, 0.0, False),  # half more time for a third more tokens
        (1, 64, 2.6, 0.0, True),
        (1, 8, 2.5, 0.5, True),
        (1, 8, 2.5, 0.7, False),  # the step waits for its drafts
        (16, 16, 2.4, 0.0, False),
        (16, 16, 3.5, 0.0, True),
    ],
)
def test_one_verifies_where_drafts_yield_more_than_it_takes_longer(
    number: int, rows: int, ahead: float, longer: float, expected: bool
) -> None:
    states = [Decoding(rows, yields(ahead, rows=rows, longer=longer))] * number
    assert are_ahead(states) is expected
    assert are_ahead(states, None), "nothing is known of its cost"


@pytest.mark.parametrize(("ahead", "expected"), [(2.0, False), (2.5, True)])
def test_a_part_is_slower_while_the_others_draft_in_the_same_memory(ahead: float, expected: bool) -> None:
    alone = StepTimes((1, 16), (0.006, 0.007))
    times = StepTimes((1, 16), (0.010, 0.011), 2, alone)
    assert are_ahead([Decoding(1, yields(ahead, rows=1))], times) is expected


def test_others_weigh_against_it() -> None:
    drafting, other = Decoding(8, yields(2.5)), Decoding(30)
    assert are_ahead([drafting, other]) and not are_ahead([drafting, *[other] * 7])


def test_a_decision_holds_for_some_steps() -> None:
    roles, few, many = Roles(2), [Decoding(8, yields(2.5))], [Decoding(16, yields(2.0, rows=16))] * 16
    assert [are_ahead(few, roles=roles)] + [are_ahead(many, roles=roles) for _ in range(STEPS_PER_DECISION)] == [
        *[True] * STEPS_PER_DECISION,
        False,
    ]
    assert not are_ahead([Decoding(8)], roles=roles), "whatever was decided for others"


@pytest.mark.parametrize(("ahead", "best"), [(1.2, False), (2.0, True)])
def test_the_slower_way_is_tried_for_a_hundredth_of_the_time(ahead: float, best: bool) -> None:
    found = decisions([Decoding(1, yields(ahead, rows=1))], 200)
    tried = found.count(not best)
    loss = 1 / STEPS_PER_DECISION + (1 - 1.2 / 1.5 if not best else 1 - 1.5 / 2.0)
    assert 2 <= tried <= 1 + 200 * 0.01 / loss


def test_what_each_way_yields_is_learnt() -> None:
    worth = AheadWorth()
    assert worth.yields == (PRIOR_AHEAD, PRIOR_OTHERS, 0.0)
    for _ in range(int(4 * MOST_STEPS)):
        worth.learn(2, 8, 0.5)
        worth.learn(3, 6, None)
    assert worth.yields.ahead == pytest.approx((2.0, 8.0), rel=0.05)
    assert worth.yields.others == pytest.approx((3.0, 6.0), rel=0.05)
    assert worth.yields.longer == pytest.approx(0.5, rel=0.05)
