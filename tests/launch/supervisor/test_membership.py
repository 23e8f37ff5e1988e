"""Which ranks take part: what follows from events and from the time, without a process or a clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest

from launch.backend import State
from launch.supervisor.actions import Action, AskToRegroup, Begin, Fail, GiveUp, Kill, Say, Start
from launch.supervisor.membership import LOOK_AROUND_S, STEADY_S, Membership
from launch.supervisor.settings import SupervisorSettings
from parallel.group.epoch import Epoch

SETTINGS = SupervisorSettings(answer_within_s=3, hang_s=60, start_within_s=900, backoff_s=0.5, max_failed_starts=3)
Kind = TypeVar("Kind", bound=Action)


def group(num_ranks: int, can_shrink: bool = True) -> Membership:
    membership = Membership(num_ranks, SETTINGS, can_shrink)
    membership.start(0.0)
    return membership


def serving(num_ranks: int, can_shrink: bool = True) -> Membership:
    """A group whose ranks have all served since second 1."""
    membership = group(num_ranks, can_shrink)
    for rank in range(num_ranks):
        membership.came(rank, 0.5)
        membership.is_ready(rank, 1.0)
    join(membership, range(num_ranks), 1.0)
    return membership


def join(membership: Membership, ranks: Iterable[int], now: float) -> list[Action]:
    return [action for rank in ranks for action in membership.joined(rank, membership.number, now)]


def hear(membership: Membership, ranks: Iterable[int], now: float) -> None:
    for rank in ranks:
        membership.heard(rank, now)


def only(actions: list[Action], kind: type[Kind]) -> Kind:
    (found,) = (action for action in actions if isinstance(action, kind))
    return found


def epoch_of(actions: list[Action]) -> Epoch:
    return only(actions, Begin).epoch


def restart(membership: Membership, rank: int, now: float) -> list[Action]:
    """Starts and connects a rank and makes it ready, all at this time."""
    assert Start(rank) in membership.tick(now)
    membership.came(rank, now)
    return membership.is_ready(rank, now)


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
    assert restart(membership, 0, 12.0) == [AskToRegroup([1])]
    assert membership.is_ready(0, 12.1) == []  # the regrouping has been asked for already
    epoch = epoch_of(membership.left(1, membership.number, 12.2))
    assert (epoch.members, epoch.urgent) == ([1, 0], False)


def test_the_next_epoch_begins_once_all_have_left() -> None:
    membership = serving(2)
    assert membership.divide(True, 10.0) == [AskToRegroup([0])]
    assert membership.left(0, membership.number, 10.1) == []
    assert epoch_of(membership.left(1, membership.number, 10.1)).is_divided


def test_a_rank_that_is_lost_before_it_leaves_is_not_waited_for() -> None:
    membership = serving(3)
    membership.divide(True, 10.0)
    membership.left(0, membership.number, 10.1)
    membership.left(1, membership.number, 10.1)
    assert epoch_of(membership.ended(2, "killed", 10.2)).members == [0, 1]


def test_nobody_is_taken_in_while_a_group_still_forms() -> None:
    membership = serving(3)
    membership.ended(0, "killed", 10.0)
    hear(membership, [1, 2], 10.5)
    assert restart(membership, 0, 10.6) == []
    assert join(membership, [1], 10.7) == []
    assert join(membership, [2], 10.8) == [AskToRegroup([1])]


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
    assert restart(membership, 1, 7.0) == [AskToRegroup([0])]


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


def test_waits_between_starts_double_and_a_steady_rank_starts_at_once() -> None:
    membership = serving(2)
    membership.ended(1, "killed", 1.0 + STEADY_S)
    assert Start(1) in membership.tick(1.0 + STEADY_S)
    now = 10.0
    for wait_s in (0.5, 1.0):
        membership.ended(1, "it ended with exit code 1", now)
        hear(membership, [0], now + wait_s)
        assert Start(1) not in membership.tick(now + wait_s - 0.01)
        assert Start(1) in membership.tick(now + wait_s)
        now += 10.0


def test_a_rank_that_fails_at_every_start_is_given_up_and_the_others_go_on() -> None:
    membership = serving(2)
    membership.ended(1, "killed", 2.0)
    join(membership, [0], 2.0)
    for number in range(2):
        now = 10.0 * (number + 1)
        hear(membership, [0], now)
        assert Start(1) in membership.tick(now)
        assert membership.failed(1, "no room on the GPU", is_final=False, now=now) == []
        actions = membership.ended(1, "it ended with exit code 1", now + 1)
    assert membership.slots[1].state is State.failed
    assert any("rank 1 is given up" in action.message for action in actions if isinstance(action, Say))
    hear(membership, [0], 99.0)
    assert membership.tick(99.0) == [] and membership.epoch and membership.epoch.members == [0]


def test_a_group_that_never_served_is_given_up_with_the_words_of_the_rank() -> None:
    membership = group(2)
    membership.came(1, 1.0)
    actions = membership.failed(1, "the model cannot be loaded", is_final=True, now=2.0)
    gave_up = only(actions, GiveUp)
    assert gave_up == GiveUp("rank 1 cannot be started: the model cannot be loaded", is_final=True)
    assert membership.is_over and membership.tick(3.0) == [] and membership.ended(0, "killed", 3.0) == []


def test_a_rank_that_would_fail_again_is_given_up_at_once_and_the_others_go_on() -> None:
    membership = serving(2)
    membership.ended(1, "killed", 2.0)
    join(membership, [0], 2.0)
    hear(membership, [0], 3.0)
    assert Start(1) in membership.tick(3.0)
    said = membership.failed(1, "the weights are gone", is_final=True, now=4.0)
    assert any("rank 1 is given up" in action.message for action in said if isinstance(action, Say))
    assert membership.ended(1, "it ended with exit code 2", 4.1) == [] == membership.tick(4.2)
    assert membership.epoch and membership.epoch.members == [0]


def test_what_a_serving_rank_cannot_mend_ends_it_once_its_process_does() -> None:
    membership = serving(2)
    assert membership.failed(1, "no memory left on the GPU", is_final=True, now=20.0) == []
    membership.ended(1, "it ended with exit code 2", 20.1)
    assert membership.slots[1].state is State.down


def failing_in_the_epoch(membership: Membership, rank: int, now: float) -> list[Action]:
    """All ranks of a split model come. This one ends before it has joined, and so the others are ended."""
    for other in range(membership.num_ranks):
        membership.came(other, now)
        membership.is_ready(other, now)
    actions = membership.ended(rank, "it ended with exit code 1", now)
    for action in actions:
        if isinstance(action, Kill):
            membership.ended(action.rank, "it was ended by SIGKILL", now)
    return actions


def test_a_rank_of_a_split_model_that_never_gets_to_serve_is_given_up_and_no_other() -> None:
    membership = group(3, can_shrink=False)
    assert "rank 1" in only(failing_in_the_epoch(membership, 1, 1.0), Fail).message
    assert [slot.num_failures for slot in membership.slots] == [0, 1, 0]
    membership.tick(11.0)
    failing_in_the_epoch(membership, 1, 12.0)
    membership.tick(22.0)
    gave_up = only(failing_in_the_epoch(membership, 1, 23.0), GiveUp)
    assert gave_up == GiveUp("rank 1 cannot be started: it ended with exit code 1", is_final=False)


def test_a_rank_that_said_why_it_ends_is_quoted_for_its_silence() -> None:
    membership = serving(2, can_shrink=False)
    membership.failed(1, "the disk is gone", is_final=False, now=9.0)
    membership.disconnected(1, 9.0)
    hear(membership, [0], 9.0)
    actions = membership.tick(9.0 + 2 * LOOK_AROUND_S)
    assert "the disk is gone" in only(actions, Fail).message
    assert not any(isinstance(action, Say) for action in actions)


def test_a_rank_that_is_not_ready_in_time_is_ended() -> None:
    membership = group(2)
    membership.came(0, 1.0)
    assert membership.tick(902.0) == [Kill(0), Kill(1)]
    (said, *_) = membership.ended(0, "it was ended by SIGKILL", 903.0)
    assert isinstance(said, Say) and "supervisor.start_within_s=900" in said.message
