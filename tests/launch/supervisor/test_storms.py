"""Ranks are lost at random, several at a time, at any moment; afterwards all serve in one epoch again.

The ranks are simulated, as slow to start, to hear and to answer as chance has it; membership.py is the real one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from launch.backend import State
from launch.supervisor.membership import (
    Action,
    AskToRegroup,
    Begin,
    GiveUp,
    Kill,
    Membership,
    Start,
    SupervisorSettings,
)
from parallel.groups.elastic import fitting_size
from parallel.groups.epoch import Epoch

STORM_S, CALM_S = 30.0, 90.0
TICK_S = 0.05
SETTINGS = SupervisorSettings(hang_timeout_s=10.0, backoff_s=0.1, max_failed_starts=10_000)


class Rank:
    """A simulated process. epoch: the last one that it has heard of."""

    def __init__(self, number: int):
        self.number = number
        self.epoch: Epoch | None = None
        self.is_dead = False
        self.has_joined = False
        self.asleep_until = 0.0


class World:
    """Carries out the membership's actions, and tells it what comes of them."""

    def __init__(self, num_ranks: int, can_shrink: bool, seed: int):
        self.draw = random.Random(seed)
        self.now = 0.0
        self.ranks: dict[int, Rank] = {}
        self.epochs: list[Epoch] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.membership = Membership(num_ranks, SETTINGS, can_shrink)
        self.do(self.membership.start(0.0))

    def run(self, until: float, kills_a_second: float, turns_a_second: float = 0.0) -> None:
        """turns_a_second: how often the groups are to have another size."""
        while self.now < until:
            self.now += TICK_S
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for rank in self.ranks.values():
                if not rank.is_dead and rank.asleep_until <= self.now:
                    self.membership.heard(rank.number, self.now)
            if self.draw.random() < kills_a_second * TICK_S:
                self.strike(self.draw.choice(list(self.ranks.values())))
            self.do(self.membership.tick(self.now))
            if self.draw.random() < turns_a_second * TICK_S:
                self.do(self.membership.resize(self.draw.choice([1, 2, 4]), self.now))

    def strike(self, rank: Rank) -> None:
        if self.draw.random() < 0.3:
            rank.asleep_until = self.now + self.draw.uniform(1.0, 15.0)
        else:
            self.end(rank, "it was ended by SIGKILL")

    def end(self, rank: Rank, how: str) -> None:
        if not rank.is_dead:
            rank.is_dead = True
            self.after(0.05, lambda: self.do(self.membership.ended(rank.number, how, self.now)))

    def after(self, at_most_s: float, event: Callable[[], None], rank: Rank | None = None) -> None:
        """Does something soon: not at all if the rank has died by then, and late if it sleeps."""

        def happen() -> None:
            if rank is None:
                event()
            elif rank.asleep_until > self.now:
                heapq.heappush(self._events, (rank.asleep_until, next(self._order), happen))
            elif not rank.is_dead:
                event()

        heapq.heappush(self._events, (self.now + self.draw.uniform(0.0, at_most_s), next(self._order), happen))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(number):
                    self.start(number)
                case Kill(number):
                    self.end(self.ranks[number], "it was ended by SIGKILL")
                case Begin(epoch):
                    self.epochs.append(epoch)
                    for rank in self.ranks.values():
                        self.after(0.1, partial(self.hear, rank, epoch), rank)
                case AskToRegroup():
                    for rank in [self.ranks[leader] for leader in self.epochs[-1].leaders]:
                        self.after(0.1, partial(self.regroup, rank, self.membership.number), rank)
                case GiveUp(message):
                    raise AssertionError(f"given up: {message}")

    def start(self, number: int) -> None:
        assert number not in self.ranks or self.ranks[number].is_dead, "a rank must be started once at a time"
        rank = self.ranks[number] = Rank(number)

        def come() -> None:
            self.do(self.membership.came(number, self.now))
            self.after(2.0, lambda: self.do(self.membership.is_ready(number, self.now)), rank)

        self.after(2.0, come, rank)

    def hear(self, rank: Rank, epoch: Epoch) -> None:
        if rank.epoch is not None and epoch.number <= rank.epoch.number:
            return
        is_split = not self.membership.can_shrink
        if (rank.number not in epoch.members and rank.epoch is not None) or (is_split and rank.epoch is not None):
            self.end(rank, "it ended with exit code 3")
        elif rank.number in epoch.members:
            rank.epoch, rank.has_joined = epoch, False
            self.after(0.1, lambda: self.meet(rank, epoch), rank)

    def meet(self, rank: Rank, epoch: Epoch) -> None:
        """Joins once all have come with whom it shares steps; says that a rank is lost if one of them never will."""
        if rank.epoch is not epoch:
            return
        members = [self.ranks[number] for number in epoch.group_of(rank.number)]
        if any(member.is_dead for member in members):
            self.do(self.membership.lost(epoch.number, self.now))
        elif all(member.epoch is epoch for member in members):
            rank.has_joined = True
            self.do(self.membership.joined(rank.number, epoch.number, self.now))
        else:
            self.after(0.05, lambda: self.meet(rank, epoch), rank)

    def regroup(self, rank: Rank, number: int) -> None:
        """Ends a leader's step: a command goes to all with whom it shares steps, so all must be there; all leave."""
        if rank.epoch is None or rank.epoch.number != number:
            return
        members = [self.ranks[number] for number in rank.epoch.group_of(rank.number)]
        if all(member.epoch is rank.epoch and not member.is_dead for member in members):
            for member in members:
                self.after(0.1, partial(self.leave, member, number), member)
        else:
            self.after(0.05, lambda: self.regroup(rank, number), rank)

    def leave(self, rank: Rank, number: int) -> None:
        self.do(self.membership.left(rank.number, number, self.now))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("can_shrink", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_after_the_storm_all_serve_in_one_epoch(num_ranks: int, can_shrink: bool, seed: int) -> None:
    world = World(num_ranks, can_shrink, seed)
    turns = 0.5 if can_shrink else 0.0
    world.run(STORM_S, kills_a_second=0.7, turns_a_second=turns)
    world.run(STORM_S + CALM_S / 2, kills_a_second=0.0, turns_a_second=turns)
    divided = [epoch for epoch in world.epochs if epoch.is_divided]
    assert bool(divided) is can_shrink and all(len(epoch.members) > 1 for epoch in divided)
    world.run(STORM_S + CALM_S, kills_a_second=0.0)
    epoch = world.membership.epoch
    wanted = world.membership.group_size if can_shrink else num_ranks
    assert epoch and epoch.group_size == fitting_size(wanted, num_ranks)
    slots = world.membership.slots
    assert [slot.state for slot in slots] == [State.serving] * num_ranks, [slot.message for slot in slots]
    assert all(rank.epoch is world.membership.epoch and rank.has_joined for rank in world.ranks.values())
    assert [epoch.number for epoch in world.epochs] == list(range(1, len(world.epochs) + 1))
    if not can_shrink:
        assert all(len(epoch.members) == num_ranks for epoch in world.epochs)
