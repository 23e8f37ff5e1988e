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
from parallel.group import commands
from parallel.group.commands import Abort, AddRequest, Command, Inbox, Measure, Regroup, Shutdown

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
                        measure_again(engine)
        if not engine.is_idle:
            if inbox and channel.num_ranks > 1:
                channel.announce(inbox.has_waiting() or should_measure(engine))
            for progress in engine.step():
                emit(progress)
        flush()


def should_measure(engine: Engine) -> bool:
    """Whether the step times are far from what steps take, and now is an occasion to measure them anew.

    Ranks answer by their own clocks, so rank 0 decides for all.
    """
    watch = engine.batches.clock.watch
    return watch is not None and bool(engine.measure_times) and not engine.batches and watch.is_due(engine.is_idle)


def measure_again(engine: Engine) -> None:
    """Measures the step times anew, on all ranks together, and lets the engine decide by them."""
    if engine.measure_times is None or (watch := engine.batches.clock.watch) is None:
        return
    log.info("steps took %.2g times as long as was measured before: measuring again", watch.measured())
    if (times := engine.measure_times()) is not None:
        engine.history.take_times(times)  # sequences that have begun keep what they began with
        engine.batches.take_times(times)


def _commands_due(engine: Engine, channel: Channel, inbox: Inbox | None) -> bool:
    """Whether commands follow, as the last exchange said; a single rank asks its inbox instead."""
    if channel.num_ranks > 1:
        return channel.commands_due
    return inbox is not None and (inbox.has_waiting() or should_measure(engine))


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
    return [Measure()] if not taken and should_measure(engine) else taken
