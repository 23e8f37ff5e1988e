"""What else may befall ranks in the midst of a stream: several killed, one stopped, all killed, one taken in again.

Streams are slow (one token a step, a latency added to every exchange), so that what is done to the ranks, and a restart
where that is the point, falls within them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil

from benchmarks.faults.rank_server import LOOK_S, Launcher, RankServer, ServerTrouble, serving
from benchmarks.faults.requests import body
from benchmarks.faults.stream import Stream, gap_s, stream

PROMPT = "def running_mean(values, width):\n"
AT_EVENT = 10
"""Events of a stream before anything is done to the ranks."""
SECOND_KILL_S = 0.03
"""From one kill to another that shall fall into the recovery."""
STOPPED_S = 10.0
LEAVE_S = 10.0
"""What a rank that was stopped gets, once it wakes, to see that it is no member any more, and to leave."""
LP = ("parallel=lp", "parallel.delay_us=10000")
MOST_TRIES = 3
ERROR_WITHIN_S = 2.0
"""Within which the requests of groups that cannot survive must be told so."""


@dataclass(frozen=True)
class Verdict:
    """seen: what came to pass, for the report. gap_s: of the client, if its stream was to survive."""

    passed: bool
    seen: str
    gap_s: float | None = None


@dataclass(frozen=True)
class Disturbed:
    """at: when it was disturbed, by time.monotonic(). gone: processes that shall not come back."""

    stream: Stream
    at: float
    gone: list[int]


Act: TypeAlias = Callable[[], list[int]]
"""What is done to the ranks; gives the processes that shall not come back."""


class Stage:
    """A server, a slow request and what that gives if nobody disturbs it."""

    def __init__(self, server: RankServer, max_tokens: int):
        self.server = server
        self._request = body("sampled", PROMPT, max_tokens, decode={"method": "autoregressive"})
        self._undisturbed = self.stream()
        if not self._undisturbed.is_complete:
            raise ServerTrouble(f"a stream that nobody disturbed was cut short: {self._undisturbed.error}")

    def stream(self, on_event: Callable[[int], None] = lambda number: None) -> Stream:
        return stream(self.server.url, self._request, on_event)

    def disturb(self, act: Act) -> Disturbed:
        """The stream beside which `act` runs."""
        acts: list[Future[tuple[float, list[int]]]] = []
        with ThreadPoolExecutor(1) as pool:
            seen = self.stream(lambda number: acts.append(pool.submit(_begun_at, act)) if number == AT_EVENT else None)
            return Disturbed(seen, *acts[0].result())

    def is_whole(self, seen: Stream) -> bool:
        return seen.says_the_same(self._undisturbed)

    def tell(self, seen: Stream) -> str:
        return (
            "the same tokens" if self.is_whole(seen) else f"NOT the undisturbed stream: {seen.error or 'other tokens'}"
        )

    def gap_s(self, seen: Disturbed) -> float:
        return gap_s(seen.stream, self._undisturbed, seen.at)


def survives(stage: Stage, act: Act) -> Verdict:
    """The stream goes on as if nothing had been done; then all ranks are there again."""
    seen = stage.disturb(act)
    stage.server.wait_for_all(seen.gone)
    told = f"{stage.tell(seen.stream)}; all ranks there after {time.monotonic() - seen.at:.1f} s"
    return Verdict(stage.is_whole(seen.stream), told, stage.gap_s(seen))


def fails_and_is_rebuilt(stage: Stage, ranks: Sequence[int]) -> Verdict:
    """The client is told soon that these were killed; afterwards the same request is answered as before."""
    old = list(stage.server.status().pids.values())
    seen = stage.disturb(lambda: stage.server.signal(ranks))
    told_s = seen.stream.ended_at - seen.at
    stage.server.wait_for_all(gone=old)
    back_s = time.monotonic() - seen.at
    again = stage.stream()
    passed = seen.stream.error is not None and told_s <= ERROR_WITHIN_S and stage.is_whole(again)
    told = f"after {told_s:.2f} s {seen.stream.error!r}; all ranks there after {back_s:.1f} s, then {stage.tell(again)}"
    return Verdict(passed, told)


def two_at_once(stage: Stage) -> Verdict:
    return survives(stage, lambda: stage.server.signal([0, stage.server.num_ranks // 2]))


def second_during_recovery(stage: Stage) -> Verdict:
    def act() -> list[int]:
        pids = stage.server.status().pids
        for rank in (stage.server.num_ranks - 1, 0):
            os.kill(pids[rank], signal.SIGKILL)
            time.sleep(SECOND_KILL_S)
        return [pids[0], pids[stage.server.num_ranks - 1]]

    return survives(stage, act)


def last_but_one(stage: Stage) -> Verdict:
    """The leader is among those killed; the one left goes on alone."""
    return survives(stage, lambda: stage.server.signal(range(stage.server.num_ranks - 1)))


def stopped(stage: Stage, seconds: float = STOPPED_S) -> Verdict:
    """A rank hangs for a while, and wakes."""
    leaves: list[bool] = []

    def act() -> list[int]:
        pids = stage.server.signal([stage.server.num_ranks - 1], signal.SIGSTOP)
        time.sleep(seconds)
        leaves.append(_leaves_once_woken(pids[0]))
        return pids

    verdict = survives(stage, act)
    left = "the rank that was stopped has left" if leaves[0] else "the rank that was stopped STAYED"
    return Verdict(verdict.passed and leaves[0], f"{verdict.seen}; {left}", verdict.gap_s)


def taken_in_again(stage: Stage) -> Verdict:
    """A rank is lost, started again, and comes back while a request streams, whichever that is by then.

    gap_s: of the client of that request, as the rank is taken in. Once more if it came between two requests.
    """
    for _ in range(MOST_TRIES):
        if verdict := _taken_in(stage):
            return verdict
    return Verdict(False, f"{MOST_TRIES} times the rank came back between two streams")


def _taken_in(stage: Stage) -> Verdict | None:
    """None if that was between two streams."""
    gone = stage.server.signal([stage.server.num_ranks - 1])
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(_done_at, lambda: stage.server.wait_for_all(gone))
        streams = [stage.stream()]
        while not coming.done():
            streams.append(stage.stream())
    came_at = coming.result()
    into = next((seen for seen in streams if seen.sent_at < came_at < seen.ended_at), None)
    others = sum(not stage.is_whole(seen) for seen in streams)
    if into is None and not others:
        return None
    told = (
        f"{len(streams)} streams one after another, {others} of them not whole; it served after {came_at - begin:.1f} s"
    )
    if into is None:
        return Verdict(False, told)
    return Verdict(not others, told, stage.gap_s(Disturbed(into, came_at - 2 * LOOK_S, gone)))


def all_killed(stage: Stage) -> Verdict:
    return fails_and_is_rebuilt(stage, range(stage.server.num_ranks))


def one_of_a_split_model(stage: Stage) -> Verdict:
    return fails_and_is_rebuilt(stage, [stage.server.num_ranks - 1])


@dataclass(frozen=True)
class Scenario:
    """settings: of the server. max_tokens: of the stream."""

    name: str
    run: Callable[[Stage], Verdict]
    ranks: int
    max_tokens: int = 256
    settings: tuple[str, ...] = LP


SCENARIOS = [
    Scenario("two of four killed at once", two_at_once, 4),
    Scenario("a second killed during the recovery", second_during_recovery, 4),
    Scenario("one stopped for 10 s", stopped, 4),
    Scenario("the last but one killed", last_but_one, 2),
    Scenario("a restarted rank is taken in", taken_in_again, 2),
    Scenario("all killed", all_killed, 2),
    Scenario("tp: one killed", one_of_a_split_model, 2, settings=("parallel=tp", "parallel.delay_us=500")),
    Scenario("pp: one killed", one_of_a_split_model, 2, settings=("parallel=pp", "parallel.delay_us=5000")),
]


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario."""

    scenario: str
    exchange: str
    ranks: int
    passed: bool
    seen: str
    gap_s: float | None


def play(model: Path, scenario: Scenario, exchange: str, settings: Sequence[str], launcher: Launcher) -> Outcome:
    """On a server of its own. A server that fails to come, to recover or to end fails the scenario."""
    settings = [f"parallel.exchange={exchange}", *scenario.settings, *settings]
    try:
        with serving(model, scenario.ranks, *settings, launcher=launcher) as server:
            verdict = scenario.run(Stage(server, scenario.max_tokens))
    except ServerTrouble as trouble:
        verdict = Verdict(False, str(trouble).replace("\n", " "))
    return Outcome(scenario.name, exchange, scenario.ranks, verdict.passed, verdict.seen, verdict.gap_s)


def _begun_at(act: Act) -> tuple[float, list[int]]:
    begin = time.monotonic()
    return begin, act()


def _done_at(wait: Callable[[], None]) -> float:
    wait()
    return time.monotonic()


def _leaves_once_woken(pid: int) -> bool:
    """Whether the process is gone `LEAVE_S` after it has been woken, or is already."""
    try:
        process = psutil.Process(pid)
        process.resume()
        process.wait(LEAVE_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
