"""Who verifies a step and who drafts ahead of it follows from step times and from what such drafts have yielded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lp.decoder import AheadOf, TokensPerStep
from lp.methods.draft_model.asking import FORGOTTEN, MOST_STEPS, PRIOR_AHEAD, AheadWorth
from lp.request import Sequence as TokenSequence
from lp.sampling.settings import Sampling
from lp.scheduling.planner import STEPS_PER_DECISION, Roles
from lp.step_cost import StepTimes

# Two parts compute few rows as fast as one, and many rows nearly twice as fast.
ONE = StepTimes((1, 16, 64, 256), (0.010, 0.011, 0.015, 0.060))
TWO = StepTimes((1, 16, 64, 256), (0.010, 0.0105, 0.012, 0.032), 2, ONE)


@dataclass
class Decoding:
    """A request that decodes, whose trees have so many rows. yields: of a decoder that others draft ahead for."""

    likely_rows: int
    yields: TokensPerStep | None = None
    expected: float = 1.5

    @property
    def decoder(self) -> Any:
        return self

    @property
    def tokens_per_step(self) -> TokensPerStep:
        assert self.yields is not None
        return self.yields

    @property
    def sequence(self) -> TokenSequence:
        return TokenSequence("", [1] * 20, 10, Sampling(temperature=0.0, seed=0))

    def ahead_of(self, tokens: Sequence[int]) -> AheadOf | None:
        decoder: Any = self
        return None if self.yields is None else AheadOf(decoder, tokens)


def are_ahead(states: Sequence[Decoding], times: StepTimes | None = TWO, roles: Roles | None = None) -> bool:
    given: Any = states
    return (roles or Roles(2)).are_ahead(given, times)


def test_all_verify_where_nobody_has_drafts_of_the_draft_model() -> None:
    assert not are_ahead([Decoding(8), Decoding(64)]) and not are_ahead([Decoding(8)], None) and not are_ahead([])


@pytest.mark.parametrize(
    ("number", "rows", "drafted", "expected"),
    [
        (1, 8, 1.0, True),
        (1, 1, 0.0, True),  # it costs nothing
        (1, 8, 0.0, False),
        (1, 64, 0.2, False),  # a quarter more time for a seventh more tokens
        (1, 64, 0.6, True),
        (16, 16, 0.9, False),
        (16, 16, 2.0, True),
    ],
)
def test_one_verifies_where_drafts_yield_more_than_it_takes_longer(
    number: int, rows: int, drafted: float, expected: bool
) -> None:
    assert are_ahead([Decoding(rows, TokensPerStep(1.5, drafted))] * number) is expected
    assert are_ahead([Decoding(rows, TokensPerStep(1.5, drafted))] * number, None), "nothing is known of its cost"


def test_others_weigh_against_it() -> None:
    drafting, other = Decoding(8, TokensPerStep(1.5, 1.0)), Decoding(30)
    assert are_ahead([drafting, other]) and not are_ahead([drafting, *[other] * 7])


def test_a_decision_holds_for_some_steps() -> None:
    roles, few, many = Roles(2), [Decoding(8, TokensPerStep(1.5, 1.0))], [Decoding(16, TokensPerStep(1.5, 0.5))] * 16
    assert [are_ahead(few, roles=roles)] + [are_ahead(many, roles=roles) for _ in range(STEPS_PER_DECISION)] == [
        *[True] * STEPS_PER_DECISION,
        False,
    ]
    assert not are_ahead([Decoding(8)], roles=roles), "whatever was decided for others"


def test_what_drafts_yield_is_learnt_and_forgotten_again() -> None:
    worth = AheadWorth()
    assert worth.tokens_per_step == (1.0, PRIOR_AHEAD)
    for _ in range(200):
        worth.learn(2, 0)
    assert worth.tokens_per_step.others == pytest.approx(2.0, rel=0.02) and worth.tokens_per_step.drafted < 0.1
    for _ in range(int(MOST_STEPS / FORGOTTEN)):
        worth.learn_without(3)
    assert worth.tokens_per_step.others == pytest.approx(3.0, rel=0.02) and worth.tokens_per_step.drafted > 0.5
