"""The loop of a rank: the same engine on every rank, driven by the same commands at the same steps.

Rank 0 has an inbox; the others learn of its commands (new and cancelled requests, shutdown) as JSON, between two steps.
That commands follow is said by a flag in the exchange of the step before, so a step without news has one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lp.engine import Engine
from lp.request import Progress, Request
from parallel.comm.channel import Channel
from parallel.errors import EpochOver

IDLE_S = 1.0
"""How long rank 0 waits for commands before it tells the others that it is still there."""

Command = dict[str, Any]


class Inbox(Protocol):
    """Rank 0's source of commands: {"submit": Request.to_dict()}, {"cancel": request id}, {"shutdown": True}, and
    {"regroup": True} where the ranks may change. May raise EpochOver there.
    """

    def take(self, wait_s: float) -> list[Command]:
        """Commands that have arrived; waits up to `wait_s` for the first."""
        ...

    def has_waiting(self) -> bool:
        """Whether `take` would find any now."""
        ...


def run(engine: Engine, channel: Channel, inbox: Inbox | None, emit: Callable[[Progress], None]) -> None:
    """Serves until a shutdown command. Raises EpochOver after a step with which the ranks are to change.

    inbox: on rank 0 alone. emit: gets what every step adds, and the end of each cancelled request.
    """
    while True:
        if engine.is_idle or _commands_due(channel, inbox):
            news = inbox.take(wait_s=IDLE_S if engine.is_idle else 0.0) if inbox else None
            for command in channel.share(news):
                if "shutdown" in command:
                    return
                if "regroup" in command:
                    raise EpochOver
                _apply(command, engine, emit)
        if not engine.is_idle:
            if inbox:
                channel.announce(inbox.has_waiting())
            for progress in engine.step():
                emit(progress)


def _commands_due(channel: Channel, inbox: Inbox | None) -> bool:
    """Whether commands follow, as said in the last exchange; a rank by itself has none and asks its inbox."""
    return channel.commands_due or (channel.num_ranks == 1 and inbox is not None and inbox.has_waiting())


def _apply(command: Command, engine: Engine, emit: Callable[[Progress], None]) -> None:
    if "submit" in command:
        engine.submit(Request.from_dict(command["submit"]))
    if "cancel" in command and (progress := engine.cancel(command["cancel"])):
        emit(progress)
