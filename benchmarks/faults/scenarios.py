"""Faults of ranks during a stream beyond a single kill: several killed, one stopped, all killed, one readmitted.

The streams are slow (one token per step, a latency added to every exchange), so that a fault, and where needed the
restart of a rank, happens before the stream ends.
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

from benchmarks.faults.observed_stream import ObservedStream, gap_s, observe_stream
from benchmarks.faults.rank_server import LOOK_S, LauncherKind, RankServer, ServerTrouble, serving
from benchmarks.faults.requests import body

PROMPT = "def running_mean(values, width):\n"
# Number of the event after which the ranks are disturbed.
AT_EVENT = 10
# Seconds between a kill and a second one during the recovery.
SECOND_KILL_S = 0.03
STOPPED_S = 10.0
# Seconds that a stopped rank has, once it runs again, to see that it is no member any more and to end.
LEAVE_S = 60.0
LP = ("parallel=lp", "parallel.delay_us=10000")
MOST_TRIES = 3
# Seconds within which the clients of a group that cannot survive must get an error.
ERROR_WITHIN_S = 2.0


@dataclass(frozen=True)
class ScenarioVerdict:
    """seen: what happened, for the report. gap_s: the client's gap, if its stream was meant to survive."""

    passed: bool
    seen: str
    gap_s: float | None = None


@dataclass(frozen=True)
class DisturbedStream:
    """at: when the ranks were disturbed, by time.monotonic(). gone: processes that must not come back."""

    stream: ObservedStream
    at: float
    gone: list[int]


# What is done to the ranks. It returns the processes that must not come back.
Disturbance: TypeAlias = Callable[[], list[int]]


class ScenarioStage:
    """A server, a slow request, and the stream that the request gives if nothing disturbs it."""

    def __init__(self, server: RankServer, max_tokens: int):
        self.server = server
        self._request = body("sampled", PROMPT, max_tokens, decode={"method": "autoregressive"})
        self._undisturbed = self.stream()
        if not self._undisturbed.is_complete:
            raise ServerTrouble(f"a stream that nobody disturbed was cut short: {self._undisturbed.error}")

    def stream(self, on_event: Callable[[ObservedStream], None] = lambda seen: None) -> ObservedStream:
        return observe_stream(self.server.url, self._request, on_event)

    def disturb(self, disturbance: Disturbance) -> DisturbedStream:
        """Streams the request and disturbs the ranks after event AT_EVENT."""
        running: list[Future[tuple[float, list[int]]]] = []
        with ThreadPoolExecutor(1) as pool:

            def on_event(seen: ObservedStream) -> None:
                if len(seen.times) == AT_EVENT:
                    running.append(pool.submit(_timed, disturbance))

            seen = self.stream(on_event)
            return DisturbedStream(seen, *running[0].result())

    def is_whole(self, seen: ObservedStream) -> bool:
        return seen.says_the_same(self._undisturbed)

    def describe(self, seen: ObservedStream) -> str:
        return (
            "the same tokens" if self.is_whole(seen) else f"NOT the undisturbed stream: {seen.error or 'other tokens'}"
        )

    def gap_s(self, seen: DisturbedStream) -> float:
        return gap_s(seen.stream, self._undisturbed, seen.at)


def survives(stage: ScenarioStage, disturbance: Disturbance) -> ScenarioVerdict:
    """The stream must continue as if nothing had happened, and all ranks must come back."""
    seen = stage.disturb(disturbance)
    stage.server.wait_for_all(seen.gone)
    told = f"{stage.describe(seen.stream)}; all ranks back after {time.monotonic() - seen.at:.1f} s"
    return ScenarioVerdict(stage.is_whole(seen.stream), told, stage.gap_s(seen))


def fails_and_is_rebuilt(stage: ScenarioStage, ranks: Sequence[int], within_s: float) -> ScenarioVerdict:
    """These ranks are killed. The client must get an error soon, and the same request must then work as before.

    within_s: seconds that the error may take.
    """
    old = list(stage.server.status().pids.values())
    seen = stage.disturb(lambda: stage.server.signal(ranks))
    told_s = seen.stream.ended_at - seen.at
    stage.server.wait_for_all(gone=old)
    back_s = time.monotonic() - seen.at
    again = stage.stream()
    passed = seen.stream.error is not None and told_s <= within_s and stage.is_whole(again)
    told = (
        f"after {told_s:.2f} s {seen.stream.error!r}; all ranks back after {back_s:.1f} s, then {stage.describe(again)}"
    )
    return ScenarioVerdict(passed, told)


def two_at_once(stage: ScenarioStage) -> ScenarioVerdict:
    return survives(stage, lambda: stage.server.signal([0, stage.server.num_ranks // 2]))


def second_during_recovery(stage: ScenarioStage) -> ScenarioVerdict:
    def kill_two() -> list[int]:
        pids = stage.server.status().pids
        for rank in (stage.server.num_ranks - 1, 0):
            os.kill(pids[rank], signal.SIGKILL)
            time.sleep(SECOND_KILL_S)
        return [pids[0], pids[stage.server.num_ranks - 1]]

    return survives(stage, kill_two)


def last_but_one(stage: ScenarioStage) -> ScenarioVerdict:
    """All ranks but the last are killed, the leader among them; the last one continues alone."""
    return survives(stage, lambda: stage.server.signal(range(stage.server.num_ranks - 1)))


def stopped(stage: ScenarioStage, seconds: float = STOPPED_S) -> ScenarioVerdict:
    """A rank hangs for a while and then runs again."""
    leaves: list[bool] = []

    def stop() -> list[int]:
        pids = stage.server.signal([stage.server.num_ranks - 1], signal.SIGSTOP)
        time.sleep(seconds)
        leaves.append(_leaves_once_resumed(pids[0]))
        return pids

    verdict = survives(stage, stop)
    left = "the stopped rank has left" if leaves[0] else "the stopped rank STAYED"
    return ScenarioVerdict(verdict.passed and leaves[0], f"{verdict.seen}; {left}", verdict.gap_s)


def taken_in_again(stage: ScenarioStage) -> ScenarioVerdict:
    """A rank is killed and restarted, and is taken in again while one of several requests streams.

    gap_s: the gap of the client of that request. The scenario is repeated if the rank came back between two requests.
    """
    for _ in range(MOST_TRIES):
        if verdict := _try_to_take_in(stage):
            return verdict
    return ScenarioVerdict(False, f"{MOST_TRIES} times the rank came back between two streams")


def _try_to_take_in(stage: ScenarioStage) -> ScenarioVerdict | None:
    """One try; None if the rank came back between two streams."""
    gone = stage.server.signal([stage.server.num_ranks - 1])
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(_finished_at, lambda: stage.server.wait_for_all(gone))
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
        return ScenarioVerdict(False, told)
    return ScenarioVerdict(not others, told, stage.gap_s(DisturbedStream(into, came_at - 2 * LOOK_S, gone)))


def all_killed(stage: ScenarioStage, within_s: float = ERROR_WITHIN_S) -> ScenarioVerdict:
    return fails_and_is_rebuilt(stage, range(stage.server.num_ranks), within_s)


def one_of_a_split_model(stage: ScenarioStage, within_s: float = ERROR_WITHIN_S) -> ScenarioVerdict:
    return fails_and_is_rebuilt(stage, [stage.server.num_ranks - 1], within_s)


@dataclass(frozen=True)
class Scenario:
    """A fault to play. settings: those of the server. max_tokens: length of the stream."""

    name: str
    run: Callable[[ScenarioStage], ScenarioVerdict]
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
class ScenarioResult:
    """What happened in a scenario, and whether it passed."""

    scenario: str
    exchange: str
    ranks: int
    passed: bool
    seen: str
    gap_s: float | None


def play(
    model: Path, scenario: Scenario, exchange: str, settings: Sequence[str], launcher: LauncherKind
) -> ScenarioResult:
    """Plays a scenario on its own server. If the server fails to start, recover or end, the scenario has failed."""
    settings = [f"parallel.exchange={exchange}", *scenario.settings, *settings]
    try:
        with serving(model, scenario.ranks, *settings, launcher=launcher) as server:
            verdict = scenario.run(ScenarioStage(server, scenario.max_tokens))
    except ServerTrouble as trouble:
        verdict = ScenarioVerdict(False, str(trouble).replace("\n", " "))
    return ScenarioResult(scenario.name, exchange, scenario.ranks, verdict.passed, verdict.seen, verdict.gap_s)


def _timed(disturbance: Disturbance) -> tuple[float, list[int]]:
    """When the disturbance began, and what it returned."""
    begin = time.monotonic()
    return begin, disturbance()


def _finished_at(wait: Callable[[], None]) -> float:
    """When the wait was over."""
    wait()
    return time.monotonic()


def _leaves_once_resumed(pid: int) -> bool:
    """Resumes a stopped process and tells whether it is gone within `LEAVE_S`."""
    try:
        process = psutil.Process(pid)
        process.resume()
        process.wait(LEAVE_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
