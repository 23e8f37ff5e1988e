"""The front end of a group of ranks: starts them, relays requests and tokens, regroups them when one is lost.

membership.py decides what follows from an event, ElasticGroups how many ranks share their steps, and the dispatcher has
the requests. This file has the threads, the links and the clock around them.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore

from launch.backend import BackendFailed
from launch.config.engine_settings import to_json_values
from launch.config.runtime import RuntimeSettings
from launch.supervisor.launcher import Launcher, RankSpec
from launch.supervisor.membership import (
    ABLE,
    Action,
    AskToRegroup,
    Begin,
    Fail,
    GiveUp,
    Kill,
    Membership,
    Place,
    Say,
    Start,
    SupervisorSettings,
    describe_ranks,
)
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import check_dtype
from lp.model.checkpoint_info import read_checkpoint_info, require_trees
from lp.request import Output
from lp.scheduling.kv_budget import KVBudget
from lp.step_cost import StepTimes
from parallel import build
from parallel.groups import messages
from parallel.groups.dispatcher import Dispatcher
from parallel.groups.elastic import ElasticGroups
from parallel.groups.epoch import Epoch
from parallel.groups.link import Link, LinkClosed, Listener
from parallel.groups.messages import Command, Inbox
from parallel.groups.worker import IDLE_S
from parallel.mesh import Mode

log = logging.getLogger("lookahead")

TICK_S = 0.02
# Seconds that ranks get to end by themselves once they are told to.
LEAVE_S = 5.0
# Seconds that the last messages of a rank whose process has ended get to arrive.
LAST_WORDS_S = 1.0


class GroupFailed(BackendFailed):
    """No rank is left, and none can be started."""


class Supervisor:
    """One group of `settings.parallel.ranks` ranks: a Backend.

    Raises ValueError for a checkpoint or settings that cannot be used, OSError if the front end cannot listen for its
    ranks.
    """

    def __init__(
        self, settings: RuntimeSettings, supervision: SupervisorSettings, launcher: Launcher, restarts: bool = True
    ) -> None:
        """restarts: whether a lost rank is started again; without, the loss of one ends the group."""
        supervision.check()
        num_ranks = settings.parallel.wanted_ranks
        degrees = settings.parallel.resolve_degrees(num_ranks)
        model = settings.model
        check_dtype(model.dtype)
        known = read_checkpoint_info(model.path, model.max_length, model.grammar_backend, model.heads)
        build.check(known.config, degrees)
        require_trees(known)
        second = settings.second_models(holds_all=False)
        for extension in second:
            extension.check(known)
        roles = [extension.role for extension in second]
        self.request_builder = RequestBuilder(known, settings.decode, settings.sampling, settings.limits, roles)
        self._settings, self._launcher = settings, launcher
        self._emit: Callable[[Output], None]
        self._fail: Callable[[str], None]
        self._changed = threading.Condition(threading.RLock())
        is_whole = degrees.get("tp", 1) * degrees.get("pp", 1) == 1
        self._group = Membership(num_ranks, supervision, can_shrink=is_whole, restarts=restarts)
        self._dispatcher = Dispatcher(self._command, ElasticGroups(Mode(settings.parallel.mode)))
        self._links: dict[int, Link] = {}
        self._places: dict[int, Place] = {}
        # By rank: set once its link has closed and everything that it said has been processed.
        self._heard: dict[int, threading.Event] = {}
        self._gave_up: GroupFailed | None = None
        self._shutting_down = False
        self._dying: set[int] = set()  # ranks that were killed on purpose and have not ended yet
        self.step_times: StepTimes | None = None
        self._ended = threading.Event()
        self._key = secrets.token_bytes(32)
        self._listener = Listener(launcher.host, self._key, self._on_connect)
        self._store = open_store(launcher.host)
        self.num_losses = 0

    def run(self, inbox: Inbox, emit: Callable[[Output], None], fail: Callable[[str], None]) -> None:
        """See Backend. Raises GroupFailed."""
        self._emit, self._fail = emit, fail
        ticking = threading.Thread(target=self._tick, name="supervisor", daemon=True)
        with self._changed:
            self._do(self._group.start(time.monotonic()))
        ticking.start()
        try:
            self._relay(inbox)
        finally:
            self._close()

    def status(self) -> dict[str, Any]:
        """See Backend. epoch: the number of the current one."""
        with self._changed:
            ranks = describe_ranks(self._group.slots, self._places, time.monotonic())
            epoch = self._group.epoch
            divided = epoch is not None and epoch.is_divided
            return {"epoch": epoch and epoch.number, "divided": divided, "ranks": ranks}

    @property
    def outlives_ranks(self) -> bool:
        return self._group.can_shrink and self._group.restarts and len(self._group.slots) > 1

    def kill(self, rank: int) -> str | None:
        """See Backend."""
        with self._changed:
            if why := self._group.why_no_loss(rank, self._dying):
                return why
            log.warning("rank %d is killed, as a client has asked for it", rank)
            self._dying.add(rank)
            self._do([Kill(rank)])
            return None

    @property
    def is_serving(self) -> bool:
        """Whether there is an epoch that all its members have joined."""
        with self._changed:
            epoch = self._group.epoch
            return epoch is not None and all(self._group.slots[rank].has_joined for rank in epoch.members)

    def _relay(self, inbox: Inbox) -> None:
        """Hands commands to the leaders, until one of them is the shutdown."""
        while not self._shutting_down:
            taken = inbox.take(IDLE_S)
            with self._changed:
                if self._gave_up:
                    raise self._gave_up
                self._shutting_down |= any(isinstance(command, messages.Shutdown) for command in taken)
                self._resize(sum(isinstance(command, messages.AddRequest) for command in taken))
                self._emit_all(self._dispatcher.hand_out(taken))

    def _command(self, rank: int, epoch: Epoch, issued: list[Command]) -> None:
        """Sends commands to a leader. If it has gone, nothing is lost: the next epoch begins with all requests."""
        if link := self._links.get(rank):
            send(link, messages.Commands(epoch.number, issued))

    def _emit_all(self, ended: list[Output]) -> None:
        for output in ended:
            self._emit(output)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._changed:
                self._do(self._group.tick(time.monotonic()))
                self._resize()

    def _resize(self, num_new: int = 0) -> None:
        """Has as many ranks share their steps as the requests say. num_new: those that are about to be handed out,
        which had better not begin in an epoch that ends.
        """
        if self._dispatcher.epoch and len(self._dispatcher.epoch.members) > 1:
            now = time.monotonic()
            self._do(self._group.resize(self._dispatcher.group_size(num_new, now), now))

    def _do(self, actions: list[Action]) -> None:
        """Carries actions out. The caller holds the lock, as `_changed` is notified."""
        for action in actions:
            match action:
                case Start(rank):
                    self._start(rank)
                case Kill(rank):
                    self._launcher.kill(rank)
                case AskToRegroup():
                    self._dispatcher.hand_out([messages.Regroup()])
                case Begin(epoch):
                    self._begin(epoch)
                case Fail(message):
                    self._dispatcher.drop_all()
                    self._fail(message)
                case GiveUp(message, is_final):
                    self._gave_up = GroupFailed(message, exit_code=2 if is_final else 1)
                case Say(message):
                    log.warning("%s", message)
        self._changed.notify_all()

    def _begin(self, epoch: Epoch) -> None:
        if self._shutting_down:  # nothing runs any more, so nobody need meet for it
            return self._send_home(self._links)
        of_leaders, ended = self._dispatcher.begin(epoch)
        self._emit_all(ended)
        for rank, link in self._links.items():
            send(link, messages.BeginEpoch(of_leaders.get(rank, epoch)))
        way = ""
        if epoch.is_divided:
            each = "each" if epoch.group_size == 1 else f"each {epoch.group_size}"
            way = f", {each} with requests of its own"
        log.info("epoch %d: ranks %s%s", epoch.number, ", ".join(map(str, sorted(epoch.members))), way)

    def _start(self, rank: int) -> None:
        num_ranks = len(self._group.slots)
        local_rank, num_local_ranks = self._launcher.place(rank, num_ranks)
        spec = RankSpec(
            rank, num_ranks, local_rank, num_local_ranks, to_json_values(self._settings, RuntimeSettings),
            self._listener.address, (self._listener.address[0], self._store.port),
        )  # fmt: skip
        try:
            self._launcher.start(spec, self._key, self._on_exit)
        except (OSError, ValueError) as error:
            self._do(self._group.ended(rank, f"it cannot be started: {error}", time.monotonic()))

    def _on_exit(self, rank: int, how: str) -> None:
        if heard := self._heard.get(rank):
            heard.wait(LAST_WORDS_S)  # for what it said before it ended
        with self._changed:
            self._places.pop(rank, None)
            self._dying.discard(rank)
            if link := self._links.pop(rank, None):
                link.cut()
            was_member = self._group.epoch is not None and rank in self._group.epoch.members
            if not self._shutting_down:
                self.num_losses += was_member
                self._do(self._group.ended(rank, how, time.monotonic()))
            elif was_member:  # the others may wait for it, or for an epoch that never begins
                self._send_home(self._links)
            self._changed.notify_all()

    def _on_connect(self, link: Link) -> None:
        """Receives what a rank says, in the thread of its link."""
        heard = threading.Event()
        with suppress(LinkClosed):
            hello = read(link.receive(), "somebody")
            if not isinstance(hello, messages.Hello) or not 0 <= hello.rank < len(self._group.slots):
                log.error("somebody connected who is no rank")
                return link.cut()
            rank = hello.rank
            with self._changed:
                self._links[rank], self._heard[rank] = link, heard
                self._places[rank] = Place(hello.host, hello.pid)
                self._do(self._group.came(rank, time.monotonic()))
            with suppress(LinkClosed):
                while True:
                    if message := read(link.receive(), f"rank {rank}"):
                        self._on_message(rank, link, message)
            heard.set()
            if not self._group.restarts:
                return self._on_exit(rank, "its process has ended")
            with self._changed:
                if self._links.get(rank) is link:
                    self._group.disconnected(rank, time.monotonic())

    def _on_message(self, rank: int, link: Link, message: messages.RankMessage) -> None:
        now = time.monotonic()
        with self._changed:
            if self._links.get(rank) is not link:
                return
            self._group.heard(rank, now)
            match message:
                case messages.Outputs(number, outputs):
                    for one in outputs:
                        if output := self._dispatcher.new_part(rank, number, one):
                            self._emit(output)
                case messages.Ready(device, num_pages):
                    self._places[rank].device = device
                    if num_pages:
                        self._limit_room(num_pages)
                    self._do(self._group.is_ready(rank, now))
                case messages.Joined(number, num_pages):
                    self._limit_room(num_pages)
                    self._do(self._group.joined(rank, number, now))
                case messages.Left(number, cached):
                    self._dispatcher.left(rank, number, cached)
                    self._do(self._group.left(rank, number, now))
                case messages.Lost(number, reason):
                    log.debug("rank %d: %s", rank, reason)
                    self._do(self._group.lost(number, now))
                    if self._shutting_down:
                        self._send_home([rank])
                case messages.KVChunk(_, request_id):
                    target = self._dispatcher.target_of(request_id)
                    if target is not None and target in self._links:
                        send(self._links[target], message)
                case messages.HandedOver(number, request_id):
                    self._dispatcher.handed_over(number, request_id)
                case messages.Measured(times):
                    by_size = {int(size): StepTimes.from_dict(values) for size, values in times.items()}
                    self.step_times, self._dispatcher.times = by_size[max(by_size)], by_size
                case messages.Failed(reason, is_final):
                    self._do(self._group.failed(rank, reason, is_final, now))
                case messages.Hello() | messages.Alive():
                    pass  # a sign of life, which is noted above

    def _limit_room(self, num_pages: int) -> None:
        """Refuses requests that do not fit a rank: they must fit all of them. num_pages: of this rank."""
        least = min(num_pages, self.request_builder.budget.num_pages)
        self.request_builder.budget, self._dispatcher.num_pages = KVBudget(least), least

    def _send_home(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            send(self._links[rank], messages.Leave("the group is shut down"))

    def _close(self) -> None:
        """Sends home the ranks that have not been told to go, waits a little for those that can hear, and ends all."""
        with self._changed:
            self._group.is_over = True
            members = self._group.epoch.members if self._group.epoch and self._shutting_down else []
            self._send_home(rank for rank in self._links if rank not in members)
            able = {rank for rank in self._links if self._group.slots[rank].state in ABLE}
            self._changed.wait_for(lambda: not able & self._links.keys(), LEAVE_S)
        self._ended.set()
        self._listener.close()
        self._launcher.close()


def send(link: Link, message: messages.FrontEndMessage) -> None:
    link.send(messages.encode(message))


def read(data: bytes, sender: str) -> messages.RankMessage | None:
    """The message; None, and an error in the log, if it is not one that a rank sends."""
    try:
        return messages.from_rank(data)
    except ValueError as error:
        log.error("%s sent something that is %s", sender, error)
        return None


def open_store(host: str) -> TCPStore:
    """A store that listens on this address only; a TCPStore that opens its port itself listens on all addresses."""
    listener = socket.create_server((host, 0), backlog=128)
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
