"""The worker loop: the same engine on every rank, driven by the same commands at the same steps.

Rank 0 has an inbox. The other ranks learn of its commands (new and cancelled requests, shutdown) between two steps. A
flag in the exchange of a step tells them that commands follow, so a step without commands has one exchange.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lp.engine import Engine
from lp.request import Output
from parallel.comm.channel import Channel
from parallel.errors import EpochOver
from parallel.groups import commands
from parallel.groups.commands import Abort, AddRequest, Command, Inbox, Measure, Regroup, Shutdown

log = logging.getLogger("lookahead")

# Seconds that rank 0 waits for commands before it tells the others that it is still there.
IDLE_S = 1.0


def serve(
    engine: Engine,
    channel: Channel,
    inbox: Inbox | None,
    emit: Callable[[Output], None],
    flush: Callable[[], None] = lambda: None,
) -> None:
    """Serves until a shutdown command. Raises EpochOver after the step that is the last one with these ranks.

    inbox: given on rank 0 only. emit: gets what every step adds, and the end of each cancelled request. flush: called
    when a round of commands and the step after it, if any request is left for one, have been emitted.
    """
    while True:
        if engine.is_idle or _commands_due(engine, channel, inbox):
            for command in _next_commands(engine, channel, inbox):
                match command:
                    case AddRequest(request, tokens):
                        if progress := engine.add_request(request, tokens):
                            emit(progress)
                    case Abort(request_id):
                        if progress := engine.abort(request_id):
                            emit(progress)
                    case Regroup():
                        raise EpochOver
                    case Shutdown():
                        return
                    case Measure():
                        engine.measure_again()
        if not engine.is_idle:
            if inbox and channel.num_ranks > 1:
                channel.announce(inbox.has_waiting() or engine.should_measure)
            for progress in engine.step():
                emit(progress)
        flush()


def _commands_due(engine: Engine, channel: Channel, inbox: Inbox | None) -> bool:
    """Whether commands follow, as the last exchange said; a single rank asks its inbox instead."""
    if channel.num_ranks > 1:
        return channel.commands_due
    return inbox is not None and (inbox.has_waiting() or engine.should_measure)


def _next_commands(engine: Engine, channel: Channel, inbox: Inbox | None) -> list[Command]:
    """What rank 0's inbox holds, on every rank. Only what goes to another rank is encoded."""
    taken = _taken(engine, inbox) if inbox else None
    if taken is not None and channel.num_ranks == 1:
        return taken
    data = channel.share(None if taken is None else commands.encode(taken))
    return commands.decode(data) if taken is None else taken


def _taken(engine: Engine, inbox: Inbox) -> list[Command]:
    """What the inbox holds. An engine that waits for requests, or that has waited too long, may measure meanwhile."""
    taken = inbox.take(IDLE_S if engine.is_idle else 0.0)
    return [Measure()] if not taken and engine.should_measure else taken
