"""When speculation pauses, and how much time it may lose."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from lp.drafting.account import (
    FUNDS_AFTER_PAUSE,
    FUNDS_AT_FIRST,
    LARGEST_SHARE_OF_TIME,
    MOST_FUNDS,
    OVERDRAFT,
    SHARE_OF_WATCHING,
    Effort,
    Kinds,
    SpeculationAccount,
    priors_of_sources,
)
from lp.methods.auto.method import Auto
from lp.step_cost import Extras, StepCost, StepTimes

CURVE = (1, 2, 64), (0.010, 0.014, 0.060)
CPU = StepCost(StepTimes(*CURVE), 64)
# The host's work takes a tenth of a step.
BUSY_HOST = StepCost(StepTimes(*CURVE, extras=Extras(host_step=0.001)), 64)


def use(
    account: SpeculationAccount, num_steps: int, tokens: int, seconds: float, watching_s: float = CPU.plain_s
) -> Counter[Effort]:
    """Takes steps, of which the speculative ones have this result and the others yield a token. Counts all kinds."""
    efforts: Counter[Effort] = Counter()
    for _ in range(num_steps):
        efforts[account.effort] += 1
        match account.effort:
            case Effort.plain:
                account.took_plain_step()
            case Effort.watch:
                account.took_step(1, watching_s)
            case Effort.speculate:
                account.took_step(tokens, seconds)
    return efforts


def test_a_share_of_the_time_is_lost_where_speculation_never_pays() -> None:
    efforts = use(SpeculationAccount(CPU), 1000, tokens=1, seconds=0.014)
    assert 0 < 0.4 * efforts[Effort.speculate] < FUNDS_AT_FIRST + OVERDRAFT + 1000 * LARGEST_SHARE_OF_TIME
    assert efforts[Effort.watch] == 1000 - efforts[Effort.speculate]


def test_speculation_goes_on_while_it_pays() -> None:
    assert use(SpeculationAccount(CPU), 100, tokens=2, seconds=0.014) == {Effort.speculate: 100}


def test_pauses_watch_for_a_share_of_their_time() -> None:
    watching_s = BUSY_HOST.step_s(1, 0)
    efforts = use(SpeculationAccount(BUSY_HOST), 1000, 1, 0.015, watching_s)
    share = efforts[Effort.watch] * (watching_s / BUSY_HOST.plain_s - 1) / 1000
    assert 0.8 < share / SHARE_OF_WATCHING <= 1 and efforts[Effort.plain] > 900


def test_watching_now_and_then_ends_a_pause() -> None:
    account = SpeculationAccount(BUSY_HOST)
    account.took_step(1, 0.04)
    efforts = list[Effort]()
    while account.effort is not Effort.speculate:
        efforts.append(account.effort)
        if account.effort is Effort.watch:
            account.watched(0.9, is_right=True)
        account.took_plain_step()
    assert 2 <= efforts.count(Effort.watch) <= 4 and len(efforts) < 80
    assert efforts[-2:] == [Effort.watch] * 2, "a step after a draft that was right watches, too"


def test_earlier_gains_allow_a_bounded_loss() -> None:
    account = SpeculationAccount(CPU)
    use(account, 500, tokens=4, seconds=0.020)
    assert account.funds == MOST_FUNDS
    efforts = use(account, 400, tokens=1, seconds=0.014)
    assert 0.4 * efforts[Effort.speculate] < MOST_FUNDS + OVERDRAFT + 400 * LARGEST_SHARE_OF_TIME


def test_a_step_may_lose_little_more_than_there_is() -> None:
    account = SpeculationAccount(CPU)
    assert account.limit_s == pytest.approx(0.010 * (1 + FUNDS_AT_FIRST + OVERDRAFT))
    use(account, 100, tokens=4, seconds=0.020)
    assert account.limit_s == pytest.approx(0.010 * (1 + MOST_FUNDS + OVERDRAFT))


@pytest.mark.parametrize("seed", range(5))
def test_no_sequence_of_results_loses_more_than_the_bound(seed: int) -> None:
    """Each result is the worst or the best at random, and each step takes as long as it may."""
    rng, account = random.Random(seed), SpeculationAccount(CPU)
    tokens = seconds = gained = 0.0
    for _ in range(3000):
        if account.effort is Effort.speculate:
            took, found = account.limit_s, 4 if rng.random() < 0.05 else 1
            account.took_step(found, took)
        else:
            took, found = CPU.plain_s, 1
            account.took_step(1, took)
        tokens, seconds = tokens + found, seconds + took
        gained = max(gained, tokens * CPU.plain_s - seconds)
    lost = seconds / CPU.plain_s - tokens
    assert lost < FUNDS_AT_FIRST + OVERDRAFT + LARGEST_SHARE_OF_TIME * tokens


def test_nothing_is_bounded_where_every_step_costs_the_same() -> None:
    account = SpeculationAccount(StepCost(StepTimes.flat(), 64))
    assert use(account, 500, tokens=1, seconds=1.0) == {Effort.speculate: 500}
    assert account.limit_s == math.inf


def test_drafts_that_would_have_paid_end_a_pause() -> None:
    account = SpeculationAccount(CPU)
    account.took_step(1, 0.020)
    assert account.effort is Effort.watch
    for _ in range(20):
        account.watched(0.9, is_right=False)
        account.watched(0.3, is_right=True)  # not likely enough to be tried
    assert account.effort is Effort.watch
    account.watched(0.5, is_right=True)
    assert account.effort is Effort.watch, "one success may be chance"
    account.watched(0.5, is_right=True)
    assert account.effort is Effort.speculate and account.funds == FUNDS_AFTER_PAUSE


def test_after_a_plain_pause_there_is_enough_for_several_steps() -> None:
    account, runs, last = SpeculationAccount(BUSY_HOST), list[int](), Effort.plain
    for _ in range(600):
        effort = account.effort
        if effort is Effort.speculate:
            runs += [] if last is effort else [0]
            runs[-1] += 1
            account.took_step(1, BUSY_HOST.step_s(1, 0))
        else:
            account.took_plain_step()
        last = effort
    assert len(runs) > 3 and min(runs[1:]) >= 3


def test_kinds_of_all_sources_are_numbered_side_by_side() -> None:
    kinds = Kinds(Auto(), {"own": [0.5, 0.4]})
    assert len(kinds.sources) == len(kinds.priors) == 2 * kinds.num_own
    for name, priors in (*priors_of_sources(Auto()).items(), ("own", [0.5, 0.4])):
        first, number = kinds.first[name], len(priors)
        assert kinds.sources[first : first + number] == [name] * number
        assert kinds.priors[first : first + number] == priors
    assert all(0 < prior < 1 for prior in kinds.priors)
    assert kinds.sources[kinds.num_own :] == kinds.sources[: kinds.num_own]
    assert all(rivalled < own for own, rivalled in zip(kinds.priors, kinds.priors[kinds.num_own :], strict=False))
