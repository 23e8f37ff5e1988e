"""The worker loop: the same engine on every rank, driven by the same commands at the same steps.

Rank 0 has an inbox. The other ranks learn of its commands (new and cancelled requests, shutdown) between two steps. A
flag in the exchange of a step tells them that commands follow, so a step without commands has one exchange.
"""

from __future__ import annotations

from collections.abc import Callable

from lp.engine import Engine
from lp.request import Progress
from parallel.comm.channel import Channel
from parallel.errors import EpochOver
from parallel.group import commands
from parallel.group.commands import Cancel, Command, Inbox, Regroup, Shutdown, Submit

# Seconds that rank 0 waits for commands before it tells the others that it is still there.
IDLE_S = 1.0


def serve(engine: Engine, channel: Channel, inbox: Inbox | None, emit: Callable[[Progress], None]) -> None:
    """Serves until a shutdown command. Raises EpochOver after the step that is the last one with these ranks.

    inbox: given on rank 0 only. emit: gets what every step adds, and the end of each cancelled request.
    """
    while True:
        if engine.is_idle or _commands_due(channel, inbox):
            for command in _next_commands(channel, inbox, wait_s=IDLE_S if engine.is_idle else 0.0):
                match command:
                    case Submit(request, tokens):
                        if progress := engine.submit(request, tokens):
                            emit(progress)
                    case Cancel(request_id):
                        if progress := engine.cancel(request_id):
                            emit(progress)
                    case Regroup():
                        raise EpochOver
                    case Shutdown():
                        return
        if not engine.is_idle:
            if inbox and channel.num_ranks > 1:
                channel.announce(inbox.has_waiting())
            for progress in engine.step():
                emit(progress)


def _commands_due(channel: Channel, inbox: Inbox | None) -> bool:
    """Whether commands follow, as the last exchange said; a single rank asks its inbox instead."""
    if channel.num_ranks > 1:
        return channel.commands_due
    return inbox is not None and inbox.has_waiting()


def _next_commands(channel: Channel, inbox: Inbox | None, wait_s: float) -> list[Command]:
    """What rank 0's inbox holds, on every rank. Only what goes to another rank is encoded."""
    taken = inbox.take(wait_s) if inbox else None
    if taken is not None and channel.num_ranks == 1:
        return taken
    data = channel.share(None if taken is None else commands.encode(taken))
    return commands.decode(data) if taken is None else taken
