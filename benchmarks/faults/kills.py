"""Ranks killed at random moments of streams, one at a time: is each stream whole, and how long did its client wait?"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.rank_server import RankServer, ServerTrouble
from benchmarks.faults.requests import KINDS, body
from benchmarks.faults.stream import Stream, gap_s, stream

PHASES = ("prefill", "decode")
LATEST = 0.8
"""Share of the undisturbed stream within which a moment lies: a stream may be quicker than the undisturbed one."""
MOST_TRIES = 3
"""Streams for one kill, if some end before their moment comes."""


@dataclass(frozen=True)
class Moment:
    """`fraction` of the usual pause after event number `event`; event 0 is the sending of the request."""

    event: int
    fraction: float


@dataclass(frozen=True)
class Plan:
    """What is killed, when, in which kind of request. progress: where in the stream, from 0 to 1."""

    kind: str
    phase: str
    victim: int
    progress: float
    fraction: float

    def moment(self, undisturbed: Stream) -> Moment:
        if self.phase == "prefill":
            return Moment(0, LATEST * self.fraction)
        last = max(1, int(LATEST * len(undisturbed.times)))
        return Moment(1 + int(self.progress * (last - 1)), self.fraction)


@dataclass(frozen=True)
class Kill:
    """What came of one. phase: in which the stream was as the rank died. gap_s: see `rank_loss_stream.gap_s`.

    recovery_s: from the kill until all ranks serve again. error: what the client was told, if the stream was cut short.
    """

    exchange: str
    ranks: int
    kind: str
    phase: str
    victim: int
    event: int
    is_complete: bool
    is_identical: bool
    gap_s: float
    recovery_s: float
    error: str | None


def plans(num_ranks: int, seed: int) -> Iterator[Plan]:
    """Without end. Kinds and phases take turns; the first rank and the last come first, then ranks at random."""
    draw = random.Random(f"{num_ranks} {seed}")
    kinds, number = list(KINDS), 0
    while True:
        victim = [0, num_ranks - 1][number] if number < 2 else draw.randrange(num_ranks)
        phase = PHASES[number % len(PHASES)]
        yield Plan(kinds[number // len(PHASES) % len(kinds)], phase, victim, draw.random(), draw.random())
        number += 1


class Killer:
    """Kills a rank at a moment of a stream, whose events it is told. killed_at: by time.monotonic(), once it has."""

    def __init__(self, pid: int, moment: Moment, undisturbed: Stream):
        self.killed_at: float | None = None
        self._pid = pid
        self._moment = moment
        pause_s = undisturbed.usual_pause_s if moment.event else undisturbed.first_pause_s
        self._timer = threading.Timer(moment.fraction * pause_s, self._kill)

    def on_event(self, number: int) -> None:
        if number == self._moment.event:
            self._timer.start()

    def finish(self) -> float | None:
        """When it killed. Waits for a moment that has begun."""
        if self._timer.ident is not None:
            self._timer.join()
        return self.killed_at

    def _kill(self) -> None:
        self.killed_at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)


def undisturbed_stream(server: RankServer, request: dict[str, Any]) -> Stream:
    """What a request gives with all ranks there. Raises ServerTrouble if it gives no whole stream."""
    stream(server.url, request)  # the first of its kind is slower
    seen = stream(server.url, request)
    if not seen.is_complete:
        raise ServerTrouble(f"a stream that nobody disturbed was cut short: {seen.error}")
    return seen


class Trial:
    """A server under kills of one rank at a time."""

    def __init__(self, server: RankServer, exchange: str, prompt: list[int], max_tokens: int):
        self._server = server
        self._exchange = exchange
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._undisturbed: dict[str, Stream] = {}

    def kill(self, plan: Plan) -> Kill:
        """Returns when all ranks are back. Raises ServerTrouble if they do not come, if another than the one that was
        killed has gone, or if no stream lasts long enough.
        """
        request = body(plan.kind, self._prompt, self._max_tokens)
        if plan.kind not in self._undisturbed:
            self._undisturbed[plan.kind] = undisturbed_stream(self._server, request)
        undisturbed = self._undisturbed[plan.kind]
        moment = plan.moment(undisturbed)
        for _ in range(MOST_TRIES):
            before = self._server.status().pids
            pid = before.pop(plan.victim)
            killer = Killer(pid, moment, undisturbed)
            seen = stream(self._server.url, request, killer.on_event)
            killed_at = killer.finish()
            if killed_at is None:
                continue  # the stream had fewer events this time
            self._server.wait_for_all(gone=[pid])
            self._check_others(before)
            if killed_at < seen.ended_at:
                return self._judge(plan, seen, undisturbed, killed_at, time.monotonic() - killed_at)
        raise ServerTrouble(f"{MOST_TRIES} streams ended before event {moment.event}: --max-new-tokens is too small")

    def _check_others(self, before: dict[int, int]) -> None:
        after = self._server.status().pids
        if gone := [rank for rank in before if after.get(rank) != before[rank]]:
            raise ServerTrouble(f"ranks {gone} were not killed and are gone. The log ends:\n{self._server.log[-2000:]}")

    def _judge(self, plan: Plan, seen: Stream, undisturbed: Stream, killed_at: float, recovery_s: float) -> Kill:
        return Kill(
            self._exchange,
            self._server.num_ranks,
            plan.kind,
            "prefill" if not seen.times or killed_at < seen.times[0] else "decode",
            plan.victim,
            sum(at < killed_at for at in seen.times),
            seen.is_complete,
            seen.says_the_same(undisturbed),
            gap_s(seen, undisturbed, killed_at),
            recovery_s,
            seen.error,
        )
