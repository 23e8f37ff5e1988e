"""Hands requests to the groups of an epoch, and takes their outputs.

The leader of each group gets commands for its own requests alone; requests move from groups with many to groups with
few. Knows nothing of links, and nothing of why epochs begin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lp.request import Output, Request
from lp.step_cost import LEAST_COPIED, StepTimes
from parallel.groups import messages
from parallel.groups.elastic import BY_ROWS, ElasticGroups, Movable
from parallel.groups.epoch import Epoch
from parallel.groups.ledger import Ledger
from parallel.groups.messages import Abort, AddRequest, Command, HandOver, ResetPrefixes

# Sends commands to the leader of an epoch. What is sent to a rank that has gone is lost.
Send = Callable[[int, Epoch, list[Command]], None]


class Dispatcher:
    """The running requests, and who serves them.

    epoch: the one at hand; None if no rank serves. is_ending: whether its leaders were told to end it, so that new
    requests wait for the next one. times: of the steps of groups, by their size. num_pages: of the memory for keys and
    values that each rank has.
    """

    def __init__(self, send: Send, groups: ElasticGroups):
        self.epoch: Epoch | None = None
        self.is_ending = False
        self.times: Mapping[int, StepTimes] = {}
        self.num_pages = sys.maxsize
        self._forgets_prefixes = False  # whether the next epoch begins with ResetPrefixes
        self._sent_reset = False  # whether the leaders of this epoch were sent ResetPrefixes
        self._ledger = Ledger()
        self._groups = groups
        self._send = send

    @property
    def num_running(self) -> int:
        return len(self._ledger)

    def group_size(self, num_new: int, now: float) -> int:
        """How many ranks of this epoch had better share their steps.

        num_new: requests that are about to be handed out. now: seconds, which never decrease.
        """
        assert self.epoch is not None
        memory = self._ledger.num_pages / self.num_pages
        return self._groups.group_size(self.num_running + num_new, len(self.epoch.members), now, memory)

    def hand_out(self, issued: Iterable[Command]) -> list[Output]:
        """Notes commands and sends them to those whom they concern. Returns the outputs that no rank will send.

        Where there is no epoch, nothing is lost: the next one begins with all requests.
        """
        if self.epoch is None:
            for command in issued:
                self._ledger.note(command)
                self._forgets_prefixes |= isinstance(command, ResetPrefixes)
            return self._ledger.end_cancelled()
        orders: dict[int, list[Command]] = {rank: [] for rank in self.epoch.leaders}
        for command in issued:
            self._ledger.note(command)
            for rank in self._leaders_of(command, self.epoch):
                orders[rank].append(command)
        for rank, own in orders.items():
            if own:
                self._send(rank, self.epoch, own)
        return []

    def _leaders_of(self, command: Command, epoch: Epoch) -> list[int]:
        """The leaders that have to carry a command out."""
        match command:
            case AddRequest() if self.is_ending:
                return []
            case AddRequest(request):
                return [self._assign(request, epoch)]
            case Abort(request_id):
                rank = self._ledger.rank_of(request_id)
                return [] if rank is None else [rank]
            case messages.Regroup():
                self.is_ending = True
                return epoch.leaders
            case ResetPrefixes() if self.is_ending:
                self._forgets_prefixes = True
                return []
            case ResetPrefixes():
                self._sent_reset = True
                return epoch.leaders
            case messages.HandOver() | messages.Shutdown():
                return epoch.leaders
            case messages.UseTimes() | messages.TryStep():
                raise AssertionError("only leaders say so, to their own groups")

    def _assign(self, request: Request, epoch: Epoch, share: int = 0) -> int:
        """Chooses the leader that serves a request from now on. share: see ElasticGroups.assign."""
        loads, by_rank = self._ledger.loads(epoch.leaders), self._ledger.cached(request.id)
        cached = {
            leader: max(by_rank.get(rank, 0) for rank in epoch.group_of(leader))
            for leader in (epoch.leaders if by_rank else ())
        }
        leader = self._groups.assign(request, loads, cached, share)
        self._ledger.place(request.id, leader)
        return leader

    def begin(self, epoch: Epoch) -> tuple[dict[int, Epoch], list[Output]]:
        """Begins an epoch. Returns it for each leader, with its requests, and the outputs that no rank has sent.

        If there were several groups and they keep their size, requests stay with their leaders.
        """
        ended = self._ledger.end_cancelled()
        if self._sent_reset and not self._ends_as_planned(epoch):
            self._forgets_prefixes = True  # a leader may not have carried it out
        before, self.epoch, self.is_ending, self._sent_reset = self.epoch, epoch, False, False
        stay = before is not None and before.is_divided and epoch.is_divided and before.group_size == epoch.group_size
        self._ledger.begin(epoch.number, epoch.leaders if stay else [])
        share = -(-self.num_running // len(epoch.leaders))
        # First those that are computed already, each where that was; then the longest, so that all groups get as much.
        ledger = self._ledger
        for one in sorted(ledger.waiting(), key=lambda one: (not ledger.cached(one.id), -len(one.prompt))):
            self._assign(one, epoch, share)
        if self._forgets_prefixes:
            self._forgets_prefixes, self._sent_reset = False, True
            for rank in epoch.leaders:
                self._send(rank, epoch, [ResetPrefixes()])
        return {rank: replace(epoch, running=self._ledger.running(rank)) for rank in epoch.leaders}, ended

    def _ends_as_planned(self, epoch: Epoch) -> bool:
        """Whether the leaders ended the epoch at hand on command. epoch: the next one, which has all its ranks then."""
        return self.epoch is None or (self.is_ending and set(self.epoch.members) <= set(epoch.members))

    def left(self, rank: int, number: int, cached: Mapping[str, int]) -> None:
        """A rank has left an epoch. cached: how many tokens of each request have keys and values there."""
        self._ledger.hold(number, rank, cached)

    def new_part(self, rank: int, number: int, output: Output) -> Output | None:
        """What is new to the client of a leader's output; None if nothing is. number: of its epoch."""
        target = self._ledger.target_of(output.request_id)
        new = self._ledger.new_part(rank, number, output)
        if new and new.finish_reason:
            if target is not None and self.epoch:  # it has got keys and values for nothing
                self._send(target, self.epoch, [Abort(output.request_id)])
            self._move()
        return new

    def rank_of(self, request_id: str) -> int | None:
        """The leader that serves a request; None if there is none."""
        return self._ledger.rank_of(request_id)

    def target_of(self, request_id: str) -> int | None:
        """The leader that is to get the keys and values of a request; None if it does not move."""
        return self._ledger.target_of(request_id)

    def handed_over(self, number: int, request_id: str) -> None:
        """A leader has sent all keys and values of a request: another one goes on with it."""
        epoch, target = self.epoch, self._ledger.target_of(request_id)
        if target is None or epoch is None or epoch.number != number or self.is_ending:
            return  # the next epoch begins with all requests
        known, is_cancelled = self._ledger.known(request_id), self._ledger.is_cancelled(request_id)
        self._ledger.place(request_id, target)
        resumed: list[Command] = [AddRequest(known.request, tuple(known.tokens))]
        self._send(target, epoch, [*resumed, Abort(request_id)] if is_cancelled else resumed)

    def drop_all(self) -> None:
        """Forgets all requests, as no rank is left to go on with them."""
        self.epoch, self.is_ending = None, False
        self._ledger.drop_all()

    def _move(self) -> None:
        """Moves requests from groups with many to groups with few where that is worth it.

        Between single ranks, one that has many tokens goes on while its keys and values are copied.
        """
        epoch, ledger = self.epoch, self._ledger
        if epoch is None or not epoch.is_divided or self.is_ending:
            return
        times = self.times.get(epoch.group_size, BY_ROWS)
        movable = {one.request_id: self._price(one, epoch) for one in ledger.movable()}
        for name, source, target in self._groups.moves(ledger.loads(epoch.leaders), movable.values(), times):
            if _is_copied(movable[name], epoch):
                ledger.set_target(name, target)
                self._send(source, epoch, [HandOver(name)])
                continue
            ledger.place(name, target)
            known = ledger.known(name)
            self._send(source, epoch, [Abort(name)])
            self._send(target, epoch, [AddRequest(known.request, tuple(known.tokens))])

    def _price(self, one: Movable, epoch: Epoch) -> Movable:
        """Says what it costs to copy a request's keys and values: time of the group that sends and of the other."""
        if not _is_copied(one, epoch):
            return one
        token_s = max((times.extras.copied_token for times in self.times.values()), default=0.0)
        return one._replace(copy_s=2 * one.num_tokens * token_s) if token_s else one


def _is_copied(one: Movable, epoch: Epoch) -> bool:
    """Whether a request that moves takes its keys and values along."""
    return epoch.group_size == 1 and one.has_begun and one.num_tokens >= LEAST_COPIED
