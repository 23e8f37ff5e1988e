"""Hands requests to the ranks that lead an epoch, and takes what they tell.

Where ranks share their steps, one of them leads. In a divided epoch each rank is told commands for its own requests
alone; requests go from ranks with many to ranks with few. Knows nothing of links, and nothing of why epochs begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from launch.supervisor.dealing import Dealer
from launch.supervisor.ledger import Ledger
from launch.supervisor.moving import BY_ROWS, best_move, ends
from lp.request import Output, Request
from lp.step_cost import StepTimes
from parallel.group import commands
from parallel.group.commands import Abort, AddRequest, Command
from parallel.group.epoch import Epoch

# Sends commands to the leader of an epoch. What is sent to a rank that has gone is lost.
Send = Callable[[int, Epoch, list[Command]], None]


class Dispatcher:
    """The running requests, and who serves them.

    epoch: the one at hand; None if no rank serves. is_ending: whether its leaders were told to end it, so that new
    requests wait for the next one.
    """

    def __init__(self, send: Send):
        self.epoch: Epoch | None = None
        self.is_ending = False
        self.times_apart: StepTimes = BY_ROWS
        self._ledger = Ledger()
        self._dealer = Dealer()
        self._send = send

    @property
    def num_running(self) -> int:
        return len(self._ledger)

    def hand_out(self, issued: Iterable[Command]) -> list[Output]:
        """Notes commands and sends them to those whom they concern. Returns what nobody else can tell.

        Where there is no epoch, nothing is lost: the next one begins with all requests.
        """
        if self.epoch is None:
            for command in issued:
                self._ledger.note(command)
            return self._ledger.end_cancelled()
        orders: dict[int, list[Command]] = {rank: [] for rank in self.epoch.leaders}
        for command in issued:
            self._ledger.note(command)
            for rank in self._concerned(command, self.epoch):
                orders[rank].append(command)
        for rank, own in orders.items():
            if own:
                self._send(rank, self.epoch, own)
        return []

    def _concerned(self, command: Command, epoch: Epoch) -> list[int]:
        """The leaders that have to carry a command out."""
        match command:
            case AddRequest() if self.is_ending:
                return []
            case AddRequest(request):
                return [self._place(request, epoch)]
            case Abort(request_id):
                rank = self._ledger.rank_of(request_id)
                return [] if rank is None else [rank]
            case commands.Regroup():
                self.is_ending = True
                return epoch.leaders
            case commands.Shutdown() | commands.Measure():
                return epoch.leaders

    def _place(self, request: Request, epoch: Epoch, share: int = 0) -> int:
        """Chooses the leader that serves a request from now on. share: see Dealer.choose."""
        loads, cached = self._ledger.loads(epoch.leaders), self._ledger.cached(request.id)
        rank = self._dealer.choose(request, loads, cached, share)
        self._ledger.place(request.id, rank)
        return rank

    def begin(self, epoch: Epoch) -> tuple[dict[int, Epoch], list[Output]]:
        """Begins an epoch. Returns what each leader is told, with its requests, and the ends that no rank has told.

        If this epoch and the one before are divided, requests stay with their leaders.
        """
        ended = self._ledger.end_cancelled()
        stay = epoch.is_divided and self.epoch is not None and self.epoch.is_divided
        self._ledger.begin(epoch.number, epoch.leaders if stay else [])
        self.epoch, self.is_ending = epoch, False
        share = -(-self.num_running // len(epoch.leaders))
        # First those that are computed already, each where that was; then the longest, so that all ranks get as much.
        ledger = self._ledger
        for one in sorted(ledger.waiting(), key=lambda one: (not ledger.cached(one.id), -len(one.prompt))):
            self._place(one, epoch, share)
        return {rank: replace(epoch, running=self._ledger.running(rank)) for rank in epoch.leaders}, ended

    def left(self, rank: int, number: int, cached: Mapping[str, int]) -> None:
        """A rank has left an epoch. cached: how many tokens of each request have keys and values there."""
        self._ledger.hold(number, rank, cached)

    def told(self, rank: int, number: int, progress: Output) -> Output | None:
        """What is new to the client of what a leader tells. number: of its epoch."""
        new = self._ledger.take(rank, number, progress)
        if new and new.finish_reason:
            self._even_out()
        return new

    def drop_all(self) -> None:
        """Forgets all requests, as no rank is left to go on with them."""
        self.epoch, self.is_ending = None, False
        self._ledger.drop_all()

    def _even_out(self) -> None:
        """Moves requests from the rank with the most to the one with the fewest, as long as that is worth it."""
        if self.epoch is None or not self.epoch.is_divided or self.is_ending:
            return
        while move := self._best_move(self.epoch):
            name, most, least = move
            self._ledger.place(name, least)
            known = self._ledger.known(name)
            self._send(most, self.epoch, [Abort(name)])
            self._send(least, self.epoch, [AddRequest(known.request, tuple(known.tokens))])

    def _best_move(self, epoch: Epoch) -> tuple[str, int, int] | None:
        """A request, its rank and the one that it should move to; None if all had better stay."""
        loads = self._ledger.loads(epoch.leaders)
        most, least = ends(loads)
        movable = self._ledger.movable(loads[most].request_ids)
        move = best_move(movable, len(loads[most]), len(loads[least]), self.times_apart)
        return move and (move.request_id, most, least)
