"""Requests outlive their ranks: launch/serve.py with launcher=local, killed from outside, watched as a client does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.faults import scenarios
from benchmarks.faults.kills import KillPlan, KillTrial
from benchmarks.faults.rank_server import STOP_S, RankServer, serving, shared_memory_files, started
from benchmarks.faults.requests import long_prompt
from benchmarks.faults.scenarios import ScenarioStage
from tests.launch.server.harness import LIMIT_S, eventually
from tests.launch.supervisor.test_loss_by_method import num_running

pytestmark = pytest.mark.slow

TOKENS = 128
# Slows streams down, so that what is done to the ranks happens during a stream.
SLOW = "parallel.delay_us=10000"


@contextmanager
def stream(server: RankServer) -> Iterator[Iterator[str]]:
    """The lines of a long answer."""
    body = {"prompt": "def f(", "max_tokens": 900, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
        yield answer.iter_lines()


@pytest.fixture(scope="module")
def three(model: Path) -> Iterator[RankServer]:
    before = shared_memory_files()
    with serving(model, 3, "parallel.exchange=shm", SLOW, "step_times=off") as server:
        yield server
    assert shared_memory_files() <= before


@pytest.fixture(scope="module")
def undisturbed(three: RankServer) -> ScenarioStage:
    three.wait_for_all()
    return ScenarioStage(three, TOKENS)


@pytest.fixture
def stage(undisturbed: ScenarioStage) -> ScenarioStage:
    undisturbed.server.wait_for_all()
    return undisturbed


def test_status_shows_epoch_and_ranks(three: RankServer) -> None:
    body = httpx.get(f"{three.url}/status").json()
    assert body.keys() == {"epoch", "divided", "ranks"} and body["epoch"] >= 1
    assert [member["rank"] for member in body["ranks"]] == [0, 1, 2]
    for member in body["ranks"]:
        assert member.keys() == {"rank", "host", "pid", "device", "state", "last_sign_s"}
        assert member["device"] == "cpu" and member["state"] == "serving" and member["last_sign_s"] >= 0
        assert psutil.Process(member["pid"]).ppid() == three.process.pid


def test_a_rank_killed_in_the_prefill(three: RankServer) -> None:
    """The last rank, during a request with log-probabilities, which goes on from what the client has."""
    three.wait_for_all()
    epoch = three.status().epoch or 0
    trial = KillTrial(three, "shm", long_prompt(three.url, 600, TOKENS), TOKENS)
    kill = trial.kill(KillPlan("log-probabilities", "prefill", victim=2, progress=0.0, fraction=0.1))
    assert kill.is_identical, kill
    assert kill.phase == "prefill"
    assert (three.status().epoch or 0) >= epoch + 2  # one without the rank, one with it again


def test_two_of_three_killed_at_once_leave_one_that_goes_on(stage: ScenarioStage) -> None:
    verdict = scenarios.last_but_one(stage)
    assert verdict.passed, verdict.seen


def test_a_restarted_rank_is_taken_in_while_requests_stream(stage: ScenarioStage) -> None:
    verdict = scenarios.taken_in_again(stage)
    assert verdict.passed, verdict.seen


def test_a_rank_that_hangs_is_left_out_and_leaves_when_it_wakes(stage: ScenarioStage) -> None:
    verdict = scenarios.stopped(stage, seconds=5.0)
    assert verdict.passed, verdict.seen


def test_a_client_that_leaves_frees_its_place(three: RankServer) -> None:
    """The cancelled request is the only one: no step follows with which its end could be told."""
    three.wait_for_all()
    with stream(three) as lines:
        next(lines)
    eventually(lambda: num_running(three) == 0)


def test_sigterm_ends_all_while_a_killed_rank_is_started_anew(model: Path) -> None:
    """And while a request decodes that has no time to finish."""
    with started(model, 2, "step_times=off", "server.drain_s=0") as server:
        (pid,) = server.signal([1])
        status = server.wait_until(lambda now: now.ranks[1].state in ("starting", "loading"), "rank 1 starts")
        assert status.ranks[1].pid != pid
        with stream(server) as lines:
            next(lines)
            processes = server.family()
            server.process.terminate()
            assert server.process.wait(STOP_S) == 0, server.log
        _, left = psutil.wait_procs(processes, timeout=STOP_S)
        assert not left and "Traceback" not in server.log
