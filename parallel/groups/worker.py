"""What a rank does: it runs its engine by commands, and it joins one epoch after another, until it is sent away.

The same engine runs on every rank of a group, driven by the same commands at the same steps. Rank 0 has an inbox. The
other ranks learn of its commands (new and cancelled requests, shutdown) between two steps. A flag in the exchange of a
step tells them that commands follow, so a step without commands has one exchange.

messages.py has what the front end and a rank say to each other. epoch.py has what an epoch begins with; this file knows
nothing of models.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Protocol

from lp.engine.engine import Engine
from lp.request import Output
from lp.runner.step_times.learn import Trial
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.errors import EpochOver, RankLost
from parallel.groups import messages
from parallel.groups.epoch import Epoch, num_cached
from parallel.groups.link import Link, LinkClosed
from parallel.groups.messages import (
    Abort,
    AddRequest,
    Command,
    HandOver,
    Inbox,
    Regroup,
    ResetPrefixes,
    Shutdown,
    TryStep,
    UseTimes,
    decode_commands,
    encode_commands,
)

log = logging.getLogger("lookahead")

# Seconds that rank 0 waits for commands before it tells the others that it is still there.
IDLE_S = 1.0
# The most tokens of the last piece of a request that is handed over: for it, and for nothing larger, the stream waits.
LAST_TOKENS = 32
# Seconds between two signs of life.
ALIVE_S = 0.2


def run_engine(
    engine: Engine,
    channel: Channel,
    inbox: Inbox | None,
    emit: Callable[[Output], None],
    flush: Callable[[], None] = lambda: None,
    moves: Moves | None = None,
) -> None:
    """Serves until a shutdown command. Raises EpochOver after the step that is the last one with these ranks.

    inbox: given on rank 0 only. emit: gets what every step adds, and the end of each cancelled request. flush: called
    when a round of commands and the step after it, if any request is left for one, have been emitted. moves: given if
    requests may come from other groups, or go there, with their keys and values.
    """
    while True:
        if engine.is_idle or _commands_due(engine, channel, inbox):
            for command in _next_commands(engine, channel, inbox):
                match command:
                    case AddRequest(request, tokens):
                        if output := engine.add_request(request, tokens):
                            emit(output)
                        if moves:
                            moves.arrive(request.id)
                    case Abort(request_id):
                        if output := engine.abort(request_id):
                            emit(output)
                        if moves:
                            moves.drop(request_id)
                    case HandOver(request_id):
                        assert moves, "only a group of a single rank hands requests over"
                        moves.leave(request_id)
                    case Regroup():
                        raise EpochOver
                    case Shutdown():
                        return
                    case UseTimes(times):
                        engine.use_times(StepTimes.from_dict(times))
                    case TryStep(num_rows, is_shared, is_plain):
                        engine.try_step(Trial(num_rows, is_shared, is_plain))
                    case ResetPrefixes():
                        engine.reset_prefixes()
        if not engine.is_idle:
            if inbox and channel.num_ranks > 1:
                channel.announce(inbox.has_waiting() or engine.has_new_times)
            for output in engine.step():
                emit(output)
        flush()
        if moves:
            moves.advance()


def _commands_due(engine: Engine, channel: Channel, inbox: Inbox | None) -> bool:
    """Whether commands follow, as the last exchange said; a single rank asks its inbox instead."""
    if channel.num_ranks > 1:
        return channel.commands_due
    return inbox is not None and (inbox.has_waiting() or engine.has_new_times)


def _next_commands(engine: Engine, channel: Channel, inbox: Inbox | None) -> list[Command]:
    """What rank 0's inbox holds, on every rank. Only what goes to another rank is encoded."""
    taken = _take(engine, inbox) if inbox else None
    if taken is not None and channel.num_ranks == 1:
        return taken
    data = channel.share(None if taken is None else encode_commands(taken))
    return decode_commands(data) if taken is None else taken


def _take(engine: Engine, inbox: Inbox) -> list[Command]:
    """What the inbox holds, and new step times if there are any. An engine that nobody waits for tries a step."""
    trial = engine.next_trial() if engine.is_idle else None
    taken = inbox.take(IDLE_S if engine.is_idle and not trial else 0.0)
    if engine.has_new_times:
        return [*taken, UseTimes(engine.take_new_times().to_dict())]
    return [TryStep(*trial)] if trial and not taken else taken


class Fenced(Exception):
    """This rank no longer belongs to the group: it was given up while it did not answer, or it is no longer needed."""


class FrontEndGone(Exception):
    """The front end has ended, and with it the group."""


class Transfer(Protocol):
    """Reads and writes keys and values of single sequences, between two steps.

    layout: the same on ranks that can use each other's.
    """

    layout: int

    def length(self, sequence_id: str) -> int:
        """How many tokens of a sequence are cached here."""
        ...

    def read(self, sequence_id: str, begin: int) -> tuple[int, bytes]:
        """Some of what is cached of a sequence from token `begin` on, after the token at which that ends."""
        ...

    def write(self, sequence_id: str, begin: int, data: bytes) -> None:
        """Keeps what `read` has returned elsewhere until the sequence is open here. Must come in order."""
        ...

    def take(self, sequence_id: str) -> int:
        """Gives an open sequence what was written for it. Returns how many of its tokens are cached now."""
        ...

    def drop(self, sequence_id: str) -> None:
        """Frees what was written for a sequence that will not come."""
        ...


class Moves:
    """The requests that leave this rank for another group, or come from one, with their keys and values.

    Those go a piece after each step, so that no step waits for all of them; a request is served where it was until all
    have been sent.
    """

    def __init__(self, engine: Engine, transfer: Transfer, epoch: int, send: Callable[[messages.RankMessage], None]):
        self._engine, self._transfer, self._epoch, self._send = engine, transfer, epoch, send
        self._leaving: dict[str, int] = {}  # how many tokens' keys and values have been sent
        self._chunks: SimpleQueue[messages.KVChunk] = SimpleQueue()
        self._arriving: set[str] = set()

    def receive(self, chunk: messages.KVChunk) -> None:
        """Takes a piece from another rank. May be called from any thread."""
        self._chunks.put(chunk)

    def has_waiting(self) -> bool:
        return not self._chunks.empty()

    def leave(self, request_id: str) -> None:
        """Begins to hand a request over."""
        self._leaving[request_id] = 0

    def arrive(self, request_id: str) -> None:
        """A request has been added, which may have come from another group."""
        self._write_all()
        if request_id in self._arriving:
            self._arriving.discard(request_id)
            num_tokens = self._transfer.take(request_id)
            for state in self._engine.scheduler:
                if state.request_id == request_id:
                    state.reuse_cached(min(num_tokens, len(state.sequence.tokens) - 1))

    def drop(self, request_id: str) -> None:
        """A request has been aborted."""
        self._leaving.pop(request_id, None)
        self._write_all()
        self._arriving.discard(request_id)
        self._transfer.drop(request_id)

    def advance(self) -> None:
        """Sends a piece of each request that leaves, and writes what has come. No step may be running."""
        running = {state.request_id for state in self._engine.scheduler} if self._leaving else set()
        for name, begin in [*self._leaving.items()]:
            if name not in running:
                del self._leaving[name]
                continue
            num_left = self._transfer.length(name) - begin
            if num_left > 0:
                self._leaving[name], data = self._transfer.read(name, begin)
                self._send(messages.KVChunk(self._epoch, name, begin, self._transfer.layout, data))
            if num_left <= LAST_TOKENS:
                del self._leaving[name]
                self._engine.abort(name)
                self._send(messages.HandedOver(self._epoch, name))
        self._write_all()

    def close(self) -> None:
        """Frees what is held for requests that have not come."""
        for name in self._arriving:
            self._transfer.drop(name)

    def _write_all(self) -> None:
        while not self._chunks.empty():
            chunk = self._chunks.get()
            if chunk.layout == self._transfer.layout:
                self._arriving.add(chunk.request_id)
                self._transfer.write(chunk.request_id, chunk.begin, chunk.data)


Join = Callable[[Epoch], AbstractContextManager[Channel]]
Resume = Callable[[Epoch, Channel], list[Output]]


class Worker:
    """One rank's end of the link, and its loop.

    transfer: for requests that move between groups of a single rank with their keys and values; None if none do.
    """

    def __init__(self, link: Link, rank: int) -> None:
        self.rank = rank
        self._link = link
        self._changed = threading.Condition()
        self._next: Epoch | None = None
        self._current = 0
        self._commands: deque[tuple[int, Command]] = deque()
        self._end: Exception | None = None
        self.transfer: Transfer | None = None
        self._moves: Moves | None = None
        self.send(messages.Hello(rank, socket.gethostname(), os.getpid()))
        for run in (self._listen, self._say_alive):
            threading.Thread(target=run, name=f"worker {run.__name__}", daemon=True).start()

    def send(self, message: messages.RankMessage) -> None:
        self._link.send(messages.encode(message))

    def is_over(self) -> bool:
        """Whether the current epoch is to be given up at once."""
        return self._end is not None or (self._next is not None and self._next.urgent)

    def serve(self, engine: Engine, join: Join, resume: Resume) -> None:
        """Serves in every epoch that the front end announces, until a shutdown command.

        Raises Fenced, FrontEndGone, and whatever the engine raises that is not the loss of another rank.
        """
        while True:
            epoch = self.next_epoch()
            try:
                with join(epoch) as channel:
                    replayed = resume(epoch, channel)
                    self.serve_in(epoch, engine, channel, replayed)
                return
            except EpochOver:
                # An epoch that is given up in the middle of a step has been followed by another one already.
                self.send(messages.Left(epoch.number, {} if self.is_over() else num_cached(engine)))
            except RankLost as error:
                self.send(messages.Lost(epoch.number, str(error)))

    def next_epoch(self) -> Epoch:
        """Waits for an epoch that has not begun yet. Raises Fenced and FrontEndGone."""
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._end)
            if self._end:
                raise self._end
            assert self._next
            epoch, self._next = self._next, None
            self._current = epoch.number
        if self.rank not in epoch.members:
            raise Fenced(f"rank {self.rank} is not among the members of epoch {epoch.number}")
        return epoch

    def serve_in(self, epoch: Epoch, engine: Engine, channel: Channel, replayed: Iterable[Output] = ()) -> None:
        """Serves until a shutdown command. Raises EpochOver and RankLost."""
        unsent = [*replayed]  # a step is one message, however many requests share it

        members = epoch.group_of(self.rank)  # traces number ranks by their places in the group

        def flush() -> None:
            if unsent and channel.is_leader:
                self.send(messages.Outputs(epoch.number, [_rename_ranks(members, output) for output in unsent]))
            unsent.clear()

        moves = None
        if self.transfer and channel.num_ranks == 1:
            self._moves = moves = Moves(engine, self.transfer, epoch.number, self.send)
        self.send(messages.Joined(epoch.number, engine.checkpoint.model.memory.num_pages))
        flush()
        try:
            run_engine(engine, channel, self if channel.is_leader else None, unsent.append, flush, moves)
        finally:
            flush()
            self._moves = None
            if moves:
                moves.close()

    def take(self, wait_s: float) -> list[Command]:
        """The commands of the current epoch; see Inbox."""
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            if self.is_over():
                raise EpochOver
            waiting = [command for number, command in self._commands if number == self._current]
            self._commands = deque(entry for entry in self._commands if entry[0] > self._current)
            return waiting

    def has_waiting(self) -> bool:
        has_chunks = self._moves is not None and self._moves.has_waiting()
        return self.is_over() or has_chunks or any(number == self._current for number, _ in self._commands)

    def _listen(self) -> None:
        """Receives the front end's messages, in a thread of its own."""
        with suppress(LinkClosed):
            while True:
                data = self._link.receive()
                try:
                    message = messages.from_front_end(data)
                except ValueError as error:
                    log.error("the front end sent something that is %s", error)
                else:
                    self._on_message(message)
        with self._changed:
            self._end = self._end or FrontEndGone("the front end has ended")
            self._changed.notify_all()

    def _on_message(self, message: messages.FrontEndMessage) -> None:
        with self._changed:
            match message:
                case messages.Commands(number, issued):
                    self._commands.extend((number, command) for command in issued)
                case messages.KVChunk(number) as chunk:
                    if self._moves and number == self._current:
                        self._moves.receive(chunk)
                case messages.BeginEpoch(epoch):
                    self._next = epoch
                case messages.Leave(reason):
                    self._end = Fenced(reason)
            self._changed.notify_all()

    def _say_alive(self) -> None:
        while self._end is None:
            self.send(messages.Alive())
            time.sleep(ALIVE_S)


def _rename_ranks(members: list[int], output: Output) -> Output:
    """The output, with ranks numbered as in the epoch in its trace. members: the ranks at the places of the group."""
    return replace(output, trace=output.trace.among(members)) if output.trace else output
