"""Which ranks take part: the states of the ranks, and what follows from what happens to them.

A state machine without threads, processes or clocks: it is told of events and of the time, and it answers with the
actions to take.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from launch.backend import State
from parallel.groups.elastic import fitting_size
from parallel.groups.epoch import Epoch

# Seconds between a failed collective and the next epoch, so that the end of a process can be noticed first.
LOOK_AROUND_S = 0.1
# A rank that ends after fewer seconds of serving has failed once more in a row.
STEADY_S = 5.0
LONGEST_BACKOFF_S = 30.0

# The size of a group of all members.
ALL = sys.maxsize

RUNNING = (State.starting, State.loading, State.ready, State.serving, State.silent)
ABLE = (State.ready, State.serving)


@dataclass
class SupervisorSettings:
    """When a rank is given up, and how often it is started again. Names that end in _s are seconds.

    answer_timeout_s: a rank that is silent for longer is left out. hang_timeout_s: a rank that has been left out for
    longer is killed. start_timeout_s: the time that a rank gets to load its model. backoff_s: the wait before a rank is
    started again that failed to start, or ended soon after; it doubles with each failure in a row. max_failed_starts:
    the number of starts in a row after which a rank is given up if none of them led to its serving.
    """

    answer_timeout_s: float = 3.0
    hang_timeout_s: float = 60.0
    start_timeout_s: float = 900.0
    backoff_s: float = 0.5
    max_failed_starts: int = 3

    def check(self) -> None:
        """Raises ValueError naming the first setting that is out of range."""
        for name in ("answer_timeout_s", "hang_timeout_s", "start_timeout_s", "backoff_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"supervisor.{name}={getattr(self, name):g} must be a positive number of seconds")
        if self.max_failed_starts < 1:
            raise ValueError(f"supervisor.max_failed_starts={self.max_failed_starts} must be at least 1")


@dataclass(frozen=True)
class Start:
    rank: int


@dataclass(frozen=True)
class Kill:
    rank: int


@dataclass(frozen=True)
class AskToRegroup:
    """Let the members finish their step and wait for another epoch."""


@dataclass(frozen=True)
class Begin:
    epoch: Epoch


@dataclass(frozen=True)
class Fail:
    """The running requests are lost."""

    message: str


@dataclass(frozen=True)
class GiveUp:
    """No rank is left to serve, and none will come. is_final: the user has to fix something first."""

    message: str
    is_final: bool


@dataclass(frozen=True)
class Say:
    message: str


Action = Start | Kill | AskToRegroup | Begin | Fail | GiveUp | Say


@dataclass
class Slot:
    """What is known of one rank.

    since: when its state began. last_sign: when it was last heard from. start_at: when it is to be started again.
    num_failures: starts in a row that failed, or that ended soon after. num_unserved: starts in a row that never led to
    serving. has_joined, has_left: whether it has joined the current epoch, and left it as it was asked to. has_served:
    whether it has joined any epoch since it was started. is_dismissed: whether the group ended it, because the group
    could not go on without another rank. message: why it failed last, in its own words if it had any. is_final:
    whether it would fail in the same way again.
    """

    rank: int
    state: State = State.down
    since: float = 0.0
    last_sign: float = 0.0
    start_at: float = 0.0
    num_failures: int = 0
    num_unserved: int = 0
    has_joined: bool = False
    has_left: bool = False
    has_served: bool = False
    is_dismissed: bool = False
    message: str = ""
    is_final: bool = False


@dataclass
class Membership:
    """The state of the group.

    can_shrink: whether each rank can serve by itself, as under lookahead parallelism. restarts: whether a lost rank is
    started again; without, the loss of one ends the group. group_size: how many members of an epoch are to share their
    steps, if that divides their number. number: the last epoch that has begun. regrouping: whether the leaders were
    told to end the epoch after their step. reform_at: when the ranks that are left begin another epoch, after a failed
    collective.
    """

    num_ranks: int
    settings: SupervisorSettings
    can_shrink: bool = True
    restarts: bool = True
    group_size: int = ALL
    epoch: Epoch | None = None
    number: int = 0
    regrouping: bool = False
    reform_at: float | None = None
    is_over: bool = False
    slots: list[Slot] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = [Slot(rank) for rank in range(self.num_ranks)]

    def start(self, now: float) -> list[Action]:
        return [self._start(slot, now) for slot in self.slots]

    def came(self, rank: int, now: float) -> list[Action]:
        """The rank has connected."""
        self._enter(self.slots[rank], State.loading, now)
        return []

    def is_ready(self, rank: int, now: float) -> list[Action]:
        self._enter(self.slots[rank], State.ready, now)
        return self._regroup(now)

    def resize(self, group_size: int, now: float) -> list[Action]:
        """Says how many members of the epoch are to share their steps."""
        is_whole = self.epoch is not None and group_size >= len(self.epoch.members)
        self.group_size = ALL if is_whole else group_size
        return self._regroup(now)

    def heard(self, rank: int, now: float) -> None:
        self.slots[rank].last_sign = now

    def disconnected(self, rank: int, now: float) -> None:
        """The rank's link has closed. It soon counts as silent, unless its process turns out to have ended."""
        self.slots[rank].last_sign = now - self.settings.answer_timeout_s + LOOK_AROUND_S

    def joined(self, rank: int, number: int, now: float) -> list[Action]:
        slot = self.slots[rank]
        if number == self.number and slot.state is State.serving:
            slot.has_joined = slot.has_served = True
        return self._regroup(now)

    def left(self, rank: int, number: int, now: float) -> list[Action]:
        """The rank has finished its step; if it is a leader, it has told everything up to there. All have the same
        step, so they leave at about the same time.
        """
        if not self.regrouping or number != self.number:
            return []
        self.slots[rank].has_left = True
        if not all(self.slots[member].has_left for member in self._serving()):
            return []
        return self._begin(self._serving(), urgent=False, now=now)

    def lost(self, number: int, now: float) -> list[Action]:
        """A member's collective has failed. Which rank is the cause will show soon, if it is not the network."""
        if number == self.number and self.epoch and self.reform_at is None:
            self.reform_at = now + LOOK_AROUND_S
        return []

    def failed(self, rank: int, message: str, is_final: bool, now: float) -> list[Action]:
        """The rank says why it ends. is_final: it would say the same if it were started again."""
        slot = self.slots[rank]
        slot.message, slot.is_final = message, is_final
        is_useless = self.restarts and is_final and not slot.has_served and slot.state in RUNNING and not self.is_over
        if not is_useless:
            return []
        actions = self._lose(slot, now, "it would fail again")
        return [one for one in actions if not isinstance(one, Say)] if self.is_over else actions

    def ended(self, rank: int, how: str, now: float) -> list[Action]:
        """The rank's process has ended."""
        slot = self.slots[rank]
        if slot.state not in RUNNING or self.is_over:
            return []
        if not self.restarts:
            self._enter(slot, State.failed, now)
            return self._give_up(slot.message or f"rank {rank} was lost: {how}", slot.is_final)
        slot.message = slot.message or how
        if slot.is_dismissed:
            self._enter(slot, State.down, now)
            return []
        is_steady = slot.state is State.serving and now - slot.since >= STEADY_S
        slot.num_failures = 0 if is_steady else slot.num_failures + 1
        slot.start_at = now + self._back_off_s(slot.num_failures)
        slot.num_unserved = 0 if slot.has_served else slot.num_unserved + 1
        is_tried = slot.num_unserved >= self.settings.max_failed_starts
        return self._lose(slot, now, f"it failed to start {slot.num_unserved} times in a row" if is_tried else None)

    def why_no_loss(self, rank: int, dying: Collection[int]) -> str | None:
        """Why a rank cannot be done without now; None if it can. dying: ranks that are about to end."""
        if self.slots[rank].state not in (*ABLE, State.silent) or rank in dying:
            return f"rank {rank} does not serve now"
        others = {one for one in self._serving() if self.slots[one].has_joined} - {rank, *dying}
        return None if others else f"no other rank than {rank} serves now; wait until one is back"

    def _lose(self, slot: Slot, now: float, given_up: str | None) -> list[Action]:
        """given_up: why the rank is not started again; None if it is."""
        self._enter(slot, State.failed if given_up else State.down, now)
        actions: list[Action] = [Say(f"rank {slot.rank} is lost: {slot.message}")]
        if given_up:
            actions.append(Say(f"rank {slot.rank} is given up: {given_up}"))
        return actions + self._after_loss([slot.rank], slot.message, now)

    def _back_off_s(self, num_failures: int) -> float:
        return min(LONGEST_BACKOFF_S, self.settings.backoff_s * 2 ** (num_failures - 1)) if num_failures else 0.0

    def tick(self, now: float) -> list[Action]:
        """To be called every few hundredths of a second."""
        if self.is_over:
            return []
        actions = self._leave_out_the_silent(now)
        for slot in self.slots:
            if slot.state is State.silent and now - slot.since > self.settings.hang_timeout_s:
                actions.append(Kill(slot.rank))
            elif slot.state in (State.starting, State.loading) and now - slot.since > self.settings.start_timeout_s:
                slot.message = f"it was not ready within supervisor.start_timeout_s={self.settings.start_timeout_s:g} s"
                actions.append(Kill(slot.rank))
            elif slot.state is State.down and now >= slot.start_at:
                actions.append(self._start(slot, now))
        if self.reform_at is not None and now >= self.reform_at:
            actions += self._reform(now)
        return actions

    def _leave_out_the_silent(self, now: float) -> list[Action]:
        limit_s = self.settings.answer_timeout_s
        silent = [slot for slot in self.slots if slot.state in ABLE and now - slot.last_sign > limit_s]
        for slot in silent:
            self._enter(slot, State.silent, now)
        unheard = f"has not answered for {limit_s:g} s"
        said: list[Action] = [Say(f"rank {s.rank} {unheard} and is left out") for s in silent if not s.message]
        lost = [slot.rank for slot in silent]
        return said + (self._after_loss(lost, silent[0].message or f"it {unheard}", now) if silent else [])

    def _after_loss(self, ranks: list[int], message: str, now: float) -> list[Action]:
        if not self.restarts:
            return self._give_up(f"rank {ranks[0]} was lost: {message}", is_final=False)
        if all(slot.state is State.failed for slot in self.slots) or self._is_hopeless():
            return self._give_up(f"rank {ranks[0]} cannot be started: {message}", self.slots[ranks[0]].is_final)
        if not self.epoch or not set(ranks) & set(self.epoch.members):
            return self._regroup(now)
        why = f"rank {ranks[0]} was lost ({message})"
        if not self.can_shrink:
            self._end_epoch()
            return [Fail(f"{why}, and without it the model is not whole; try again"), *self._dismiss(ranks)]
        if self._serving():
            return self._reform(now)
        self._end_epoch()
        return [Fail(f"{why}, and there was no other rank; try again"), *self._regroup(now)]

    def _dismiss(self, lost: list[int]) -> list[Action]:
        """Ends all ranks that still run. One that was lost but still runs counts as failed, the others as dismissed."""
        running = [slot for slot in self.slots if slot.state in RUNNING]
        for slot in running:
            slot.is_dismissed = slot.rank not in lost
        return [Kill(slot.rank) for slot in running]

    def _is_hopeless(self) -> bool:
        """Whether a rank that the group needs has been given up."""
        needs_all = self.number == 0 or not self.can_shrink
        return needs_all and any(slot.state is State.failed for slot in self.slots)

    def _give_up(self, message: str, is_final: bool) -> list[Action]:
        self.is_over = True
        return [Fail(message), GiveUp(message, is_final)]

    def _regroup(self, now: float) -> list[Action]:
        """Takes in the ranks that are ready, and changes the groups' size, as soon as no other change is under way."""
        ready = [slot.rank for slot in self.slots if slot.state is State.ready]
        if self.is_over:
            return []
        if self.epoch is None:
            return self._begin([], urgent=True, now=now) if ready and self._may_begin(ready) else []
        is_due = bool(ready) or self.epoch.group_size != self._size_for(self.epoch.members)
        is_steady = all(self.slots[rank].has_joined for rank in self.epoch.members)
        if is_due and is_steady and not self.regrouping and self.reform_at is None and self.can_shrink:
            self.regrouping = True
            return [AskToRegroup()]
        return []

    def _size_for(self, members: list[int]) -> int:
        """The size of these members' groups. A rank learns what steps cost when it first serves, with all others."""
        is_whole = not self.can_shrink or not all(self.slots[rank].has_served for rank in members)
        return len(members) if is_whole else fitting_size(self.group_size, len(members))

    def _may_begin(self, ready: list[int]) -> bool:
        """The first epoch needs all ranks; a group that has lost all of them goes on with the first that comes back."""
        return len(ready) == self.num_ranks or (self.can_shrink and self.number > 0)

    def _reform(self, now: float) -> list[Action]:
        """The ranks that are left go on at once."""
        return self._begin(self._serving(), urgent=True, now=now)

    def _begin(self, survivors: list[int], urgent: bool, now: float) -> list[Action]:
        """survivors: the ranks that have served and go on; one of them leads."""
        ready = [slot.rank for slot in self.slots if slot.state is State.ready]
        self._end_epoch()
        self.number += 1
        members = [*survivors, *ready]
        self.epoch = Epoch(self.number, members, urgent, self._size_for(members), is_first=not survivors)
        for rank in self.epoch.members:
            self._enter(self.slots[rank], State.serving, now)
        return [Begin(self.epoch)]

    def _end_epoch(self) -> None:
        self.epoch, self.regrouping, self.reform_at = None, False, None
        for slot in self.slots:
            slot.has_joined = slot.has_left = False

    def _serving(self) -> list[int]:
        """The members that are left, in the order in which they came."""
        members = self.epoch.members if self.epoch else []
        return [rank for rank in members if self.slots[rank].state is State.serving]

    def _start(self, slot: Slot, now: float) -> Start:
        slot.message, slot.is_final, slot.has_served, slot.is_dismissed = "", False, False, False
        self._enter(slot, State.starting, now)
        return Start(slot.rank)

    def _enter(self, slot: Slot, state: State, now: float) -> None:
        if slot.state is not state:
            slot.state, slot.since = state, now
        slot.last_sign = now if state is not State.silent else slot.last_sign


@dataclass
class Place:
    """Where a rank runs, as it said itself; None where it has not said it yet."""

    host: str | None = None
    pid: int | None = None
    device: str | None = None


def describe_ranks(slots: Iterable[Slot], places: Mapping[int, Place], now: float) -> list[dict[str, Any]]:
    """What Backend.status says of the ranks."""
    return [
        {
            "rank": slot.rank,
            **asdict(places.get(slot.rank, Place())),
            "state": slot.state.value,
            "last_sign_s": round(now - slot.last_sign, 3),
        }
        for slot in slots
    ]
