"""A rank whose group may change: it joins one epoch after another, as the front end says, until it is sent away.

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

from lp.engine import Engine
from lp.request import Output
from parallel.comm.channel import Channel
from parallel.errors import EpochOver, RankLost
from parallel.groups import loop, messages
from parallel.groups.commands import Command
from parallel.groups.epoch import Epoch, num_cached
from parallel.groups.link import Link, LinkClosed

log = logging.getLogger("lookahead")

# Seconds between two signs of life.
ALIVE_S = 0.2


class Fenced(Exception):
    """This rank no longer belongs to the group: it was given up while it did not answer, or it is no longer needed."""


class FrontEndGone(Exception):
    """The front end has ended, and with it the group."""


Join = Callable[[Epoch], AbstractContextManager[Channel]]
Resume = Callable[[Epoch, Channel], list[Output]]


class Worker:
    """One rank's end of the link, and its loop."""

    def __init__(self, link: Link, rank: int) -> None:
        self.rank = rank
        self._link = link
        self._changed = threading.Condition()
        self._next: Epoch | None = None
        self._current = 0
        self._commands: deque[tuple[int, Command]] = deque()
        self._end: Exception | None = None
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
                group = epoch.group_of(self.rank)
                lost = [group[place] for place in error.ranks]
                self.send(messages.Lost(epoch.number, lost, str(error)))

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
        told = [*replayed]  # what has not been sent yet: a step is one message, however many requests share it

        members = epoch.group_of(self.rank)  # traces number ranks by their places in the group

        def flush() -> None:
            if told and channel.is_leader:
                self.send(messages.Progressed(epoch.number, [_traced_among(members, progress) for progress in told]))
            told.clear()

        self.send(messages.Joined(epoch.number))
        flush()
        try:
            loop.serve(engine, channel, self if channel.is_leader else None, told.append, flush)
        finally:
            flush()

    def take(self, wait_s: float) -> list[Command]:
        """The commands of the current epoch; see commands.Inbox."""
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            if self.is_over():
                raise EpochOver
            waiting = [command for number, command in self._commands if number == self._current]
            self._commands = deque(entry for entry in self._commands if entry[0] > self._current)
            return waiting

    def has_waiting(self) -> bool:
        return self.is_over() or any(number == self._current for number, _ in self._commands)

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
                case messages.BeginEpoch(epoch):
                    self._next = epoch
                case messages.Leave(reason):
                    self._end = Fenced(reason)
            self._changed.notify_all()

    def _say_alive(self) -> None:
        while self._end is None:
            self.send(messages.Alive())
            time.sleep(ALIVE_S)


def _traced_among(members: list[int], progress: Output) -> Output:
    """A progress whose trace numbers ranks as members of the group. members: the ranks at the places of the epoch."""
    return replace(progress, trace=progress.trace.among(members)) if progress.trace else progress
