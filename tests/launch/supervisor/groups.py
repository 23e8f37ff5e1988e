"""Memberships that serve, and what is told to them, for tests without a process or a clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from launch.supervisor.membership import Action, Begin, Membership, Start, SupervisorSettings
from parallel.groups.epoch import Epoch

SETTINGS = SupervisorSettings(
    answer_timeout_s=3, hang_timeout_s=60, start_timeout_s=900, backoff_s=0.5, max_failed_starts=3
)
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
