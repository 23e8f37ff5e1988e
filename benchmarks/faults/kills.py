"""Kills ranks at random moments of streams, one at a time, and judges each stream and its client's wait."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.observed_stream import ObservedStream, gap_s, observe_stream
from benchmarks.faults.rank_server import RankServer, ServerTrouble
from benchmarks.faults.requests import KINDS, body

PHASES = ("prefill", "decode")
# Share of the prefill, or of the text, within which a moment lies: a stream may be quicker than the undisturbed one.
LATEST = 0.8
# Streams tried for one kill, if some end before their moment comes.
MOST_TRIES = 3


@dataclass(frozen=True)
class KillMoment:
    """A moment of a stream: a `fraction` of the usual pause after the first `characters` of its text.

    0 characters: a fraction of the time until the first event after the request is sent. Text is the same in all
    streams of a request; the number of events is not, since decode=auto plans by the time of a step.
    """

    characters: int
    fraction: float


@dataclass(frozen=True)
class KillPlan:
    """Which rank is killed, when, and during which kind of request.

    progress: how far the text has come, from 0 to 1. fraction: see KillMoment.
    """

    kind: str
    phase: str
    victim: int
    progress: float
    fraction: float

    def moment(self, undisturbed: ObservedStream) -> KillMoment:
        if self.phase == "prefill":
            return KillMoment(0, LATEST * self.fraction)
        last = max(1, int(LATEST * len(undisturbed.text)))
        return KillMoment(1 + int(self.progress * (last - 1)), self.fraction)


@dataclass(frozen=True)
class KillResult:
    """What happened after one kill.

    phase: of the stream when the rank died. event: number of events before the kill. gap_s: see
    `observed_stream.gap_s`. recovery_s: seconds from the kill until all ranks serve again. error: what the client was
    told if the stream was cut short.
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


def plans(num_ranks: int, seed: int) -> Iterator[KillPlan]:
    """An endless series of plans.

    Kinds and phases take turns. The first rank and the last are killed first, then ranks at random.
    """
    draw = random.Random(f"{num_ranks} {seed}")
    kinds, number = list(KINDS), 0
    while True:
        victim = [0, num_ranks - 1][number] if number < 2 else draw.randrange(num_ranks)
        phase = PHASES[number % len(PHASES)]
        yield KillPlan(kinds[number // len(PHASES) % len(kinds)], phase, victim, draw.random(), draw.random())
        number += 1


class Killer:
    """Kills a rank at a moment of a stream. Its owner calls `on_event` when the request is sent and after each event.

    killed_at: when it killed the rank, by time.monotonic(); None before.
    """

    def __init__(self, pid: int, moment: KillMoment, undisturbed: ObservedStream):
        self.killed_at: float | None = None
        self._pid = pid
        self._moment = moment
        pause_s = undisturbed.usual_pause_s if moment.characters else undisturbed.first_pause_s
        self._timer = threading.Timer(moment.fraction * pause_s, self._kill)

    def on_event(self, seen: ObservedStream) -> None:
        if self._timer.ident is None and len(seen.text) >= self._moment.characters:
            self._timer.start()

    def finish(self) -> float | None:
        """When it killed the rank, or None. Waits for the kill if its text has come."""
        if self._timer.ident is not None:
            self._timer.join()
        return self.killed_at

    def _kill(self) -> None:
        self.killed_at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)


def undisturbed_stream(server: RankServer, request: dict[str, Any]) -> ObservedStream:
    """The stream of a request while all ranks serve. Raises ServerTrouble if the stream is cut short."""
    observe_stream(server.url, request)  # the first of its kind is slower
    seen = observe_stream(server.url, request)
    if not seen.is_complete:
        raise ServerTrouble(f"a stream that nobody disturbed was cut short: {seen.error}")
    return seen


class KillTrial:
    """A server whose ranks are killed one at a time."""

    def __init__(self, server: RankServer, exchange: str, prompt: list[int], max_tokens: int):
        self._server = server
        self._exchange = exchange
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._undisturbed: dict[str, ObservedStream] = {}

    def kill(self, plan: KillPlan) -> KillResult:
        """Carries out one plan. Returns when all ranks are back.

        Raises ServerTrouble if they do not come back, if another rank than the killed one has gone, or if no stream
        lasts long enough.
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
            seen = observe_stream(self._server.url, request, killer.on_event)
            killed_at = killer.finish()
            if killed_at is None:
                told = seen.error or f"it has {len(seen.text)} characters instead of {len(undisturbed.text)}"
                raise ServerTrouble(f"a stream in which no rank was killed ended too soon: {told}")
            self._server.wait_for_all(gone=[pid])
            self._check_others(before)
            if killed_at < seen.ended_at:
                return self._judge(plan, seen, undisturbed, killed_at, time.monotonic() - killed_at)
        raise ServerTrouble(
            f"{MOST_TRIES} streams ended before the kill that was due after {moment.characters} of "
            f"{len(undisturbed.text)} characters: raise --max-new-tokens"
        )

    def _check_others(self, before: dict[int, int]) -> None:
        after = self._server.status().pids
        if gone := [rank for rank in before if after.get(rank) != before[rank]]:
            raise ServerTrouble(
                f"ranks {gone} are gone although they were not killed. The log ends:\n{self._server.log[-2000:]}"
            )

    def _judge(
        self, plan: KillPlan, seen: ObservedStream, undisturbed: ObservedStream, killed_at: float, recovery_s: float
    ) -> KillResult:
        return KillResult(
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
