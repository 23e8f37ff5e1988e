"""Which ranks take part: what follows from events and from the time, without a process or a clock."""

from __future__ import annotations

import pytest

from launch.backend import State
from launch.supervisor.membership import LOOK_AROUND_S, AskToRegroup, Fail, Kill, Membership, Say, Start
from tests.launch.supervisor.groups import SETTINGS, epoch_of, hear, join, only, restart, serving


def test_the_first_epoch_begins_when_all_are_there() -> None:
    membership = Membership(3, SETTINGS)
    assert membership.start(0.0) == [Start(0), Start(1), Start(2)]
    for rank in (2, 0):
        membership.came(rank, 1.0)
        assert membership.is_ready(rank, 2.0) == []
    membership.came(1, 1.0)
    epoch = epoch_of(membership.is_ready(1, 3.0))
    assert (epoch.number, epoch.members, epoch.is_first) == (1, [0, 1, 2], True)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_those_left_go_on_at_once(victim: int) -> None:
    membership = serving(3)
    epoch = epoch_of(membership.ended(victim, "it was ended by SIGKILL", 2.0))
    assert epoch.members == [rank for rank in range(3) if rank != victim]
    assert (epoch.number, epoch.urgent, epoch.is_first) == (2, True, False)


def test_one_loss_in_the_midst_of_another() -> None:
    membership = serving(4)
    membership.ended(3, "killed", 2.0)
    join(membership, [1], 2.01)
    assert epoch_of(membership.ended(0, "killed", 2.02)).members == [1, 2]
    assert join(membership, [1, 2], 2.05) == []
    assert epoch_of(membership.ended(1, "killed", 2.06)).members == [2]


def test_a_rank_comes_back_at_the_end_of_a_step_and_does_not_lead() -> None:
    membership = serving(2)
    membership.ended(0, "killed", 10.0)
    join(membership, [1], 10.1)
    hear(membership, [1], 12.0)
    assert restart(membership, 0, 12.0) == [AskToRegroup()]
    assert membership.is_ready(0, 12.1) == []  # the regrouping has been asked for already
    epoch = epoch_of(membership.left(1, membership.number, 12.2))
    assert (epoch.members, epoch.urgent) == ([1, 0], False)


def test_the_next_epoch_begins_once_all_have_left() -> None:
    membership = serving(2)
    assert membership.resize(1, 10.0) == [AskToRegroup()]
    assert membership.left(0, membership.number, 10.1) == []
    assert epoch_of(membership.left(1, membership.number, 10.1)).is_divided


def test_a_rank_that_is_lost_before_it_leaves_is_not_waited_for() -> None:
    membership = serving(3)
    membership.resize(1, 10.0)
    membership.left(0, membership.number, 10.1)
    membership.left(1, membership.number, 10.1)
    assert epoch_of(membership.ended(2, "killed", 10.2)).members == [0, 1]


def test_nobody_is_taken_in_while_a_group_still_forms() -> None:
    membership = serving(3)
    membership.ended(0, "killed", 10.0)
    hear(membership, [1, 2], 10.5)
    assert restart(membership, 0, 10.6) == []
    assert join(membership, [1], 10.7) == []
    assert join(membership, [2], 10.8) == [AskToRegroup()]


def test_a_leader_lost_while_it_should_regroup() -> None:
    membership = serving(2)
    membership.ended(0, "killed", 10.0)
    join(membership, [1], 10.1)
    hear(membership, [1], 12.0)
    restart(membership, 0, 12.0)
    epoch = epoch_of(membership.ended(1, "killed", 12.1))
    assert epoch.members == [0]
    assert membership.left(1, 2, 12.2) == []  # it had said so of an epoch that is over


def test_a_rank_that_does_not_answer_is_left_out_and_ended_later() -> None:
    membership = serving(3)
    hear(membership, [0, 2], 4.5)
    actions = membership.tick(4.5)
    assert epoch_of(actions).members == [0, 2] and "rank 1" in only(actions, Say).message
    assert membership.slots[1].state is State.silent
    hear(membership, [0, 2], 60.0)
    assert membership.tick(60.0) == []
    hear(membership, [0, 2], 65.0)
    assert membership.tick(65.0) == [Kill(1)]


def test_a_rank_that_wakes_takes_no_part_before_it_was_started_again() -> None:
    membership = serving(2)
    hear(membership, [0], 4.5)
    membership.tick(4.5)
    assert membership.joined(1, membership.number, 5.0) == []
    membership.heard(1, 5.0)
    assert membership.slots[1].state is State.silent
    hear(membership, [0], 6.0)
    membership.ended(1, "it ended with exit code 3", 6.0)
    join(membership, [0], 6.0)
    assert restart(membership, 1, 7.0) == [AskToRegroup()]


def test_a_failed_collective_alone_forms_all_anew_after_a_look_around() -> None:
    membership = serving(2)
    hear(membership, [0, 1], 2.0)
    assert membership.lost(1, 2.0) == [] == membership.tick(2.0 + LOOK_AROUND_S / 2)
    epoch = epoch_of(membership.tick(2.0 + LOOK_AROUND_S))
    assert (epoch.number, epoch.members) == (2, [0, 1])
    assert membership.lost(1, 2.3) == []  # a late message about an epoch that is over
    assert membership.tick(2.6) == []


def test_a_failed_collective_whose_cause_shows() -> None:
    membership = serving(3)
    membership.lost(1, 2.0)
    assert epoch_of(membership.ended(1, "killed", 2.05)).members == [0, 2]
    assert membership.tick(2.0 + 2 * LOOK_AROUND_S) == []


def test_with_the_last_rank_requests_are_lost_and_the_first_to_come_back_serves() -> None:
    membership = serving(2)
    membership.ended(0, "killed", 10.0)
    actions = membership.ended(1, "it was ended by SIGKILL", 10.0)
    assert "rank 1" in only(actions, Fail).message and "SIGKILL" in only(actions, Fail).message
    assert membership.epoch is None
    assert membership.tick(12.0) == [Start(0), Start(1)]
    membership.came(1, 13.0)
    epoch = epoch_of(membership.is_ready(1, 14.0))
    assert (epoch.members, epoch.is_first) == ([1], True)


def test_a_split_model_ends_with_any_of_its_ranks_and_waits_for_all() -> None:
    membership = serving(3, can_shrink=False)
    actions = membership.ended(1, "it was ended by SIGKILL", 10.0)
    assert "rank 1" in only(actions, Fail).message
    assert [action for action in actions if isinstance(action, Kill)] == [Kill(0), Kill(2)]
    for rank in (0, 2):
        membership.ended(rank, "it was ended by SIGKILL", 10.1)
    membership.tick(20.0)
    for rank in (0, 1, 2):
        membership.came(rank, 21.0)
        actions = membership.is_ready(rank, 22.0)
        assert bool(actions) is (rank == 2)
    assert epoch_of(actions).members == [0, 1, 2]
