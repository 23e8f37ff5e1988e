"""When a rank is started again, when it is given up, and when the whole group is."""

from __future__ import annotations

from launch.backend import State
from launch.supervisor.membership import (
    LONGEST_BACKOFF_S,
    LOOK_AROUND_S,
    STEADY_S,
    Action,
    AskToRegroup,
    Fail,
    GiveUp,
    Kill,
    Membership,
    Say,
    Start,
)
from tests.launch.supervisor.groups import SETTINGS, group, hear, join, only, restart, serving


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
    for number in range(SETTINGS.max_failed_starts):
        now = 10.0 * (number + 1)
        hear(membership, [0], now)
        assert Start(1) in membership.tick(now)
        assert membership.failed(1, "no room on the GPU", is_final=False, now=now) == []
        actions = membership.ended(1, "it ended with exit code 1", now + 1)
    assert membership.slots[1].state is State.failed
    assert any("rank 1 is given up" in action.message for action in actions if isinstance(action, Say))
    hear(membership, [0], 99.0)
    assert membership.tick(99.0) == [] and membership.epoch and membership.epoch.members == [0]


def test_a_rank_that_serves_now_and_then_is_never_given_up() -> None:
    membership, now = serving(2), 2.0
    for number in range(9):
        membership.ended(1, "it was ended by SIGKILL", now)
        join(membership, [0], now)
        now += LONGEST_BACKOFF_S
        hear(membership, [0], now)
        assert only(restart(membership, 1, now), AskToRegroup)
        membership.left(0, membership.number, now)
        join(membership, [0] if number % 2 else [0, 1], now)


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


def test_the_loss_of_a_rank_that_is_not_started_again_ends_the_group() -> None:
    membership = Membership(2, SETTINGS, restarts=False)
    membership.start(0.0)
    for rank in range(2):
        membership.came(rank, 0.5)
        membership.is_ready(rank, 1.0)
    join(membership, [0, 1], 1.0)
    assert only(membership.resize(1, 2.0), AskToRegroup), "groups change their size all the same"
    gave_up = only(membership.ended(1, "its process has ended", 3.0), GiveUp)
    assert gave_up == GiveUp("rank 1 was lost: its process has ended", is_final=False)
    assert membership.tick(4.0) == []


def test_a_rank_that_is_not_started_again_says_itself_why_the_group_ends() -> None:
    membership = Membership(2, SETTINGS, restarts=False)
    membership.start(0.0)
    membership.came(1, 0.5)
    assert membership.failed(1, "the weights are gone", is_final=True, now=1.0) == []
    assert only(membership.ended(1, "its process has ended", 1.1), GiveUp) == GiveUp(
        "the weights are gone", is_final=True
    )


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
    assert isinstance(said, Say) and "supervisor.start_timeout_s=900" in said.message
