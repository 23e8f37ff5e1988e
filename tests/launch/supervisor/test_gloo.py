"""Lost ranks over gloo, whose process groups are built again; and ranks that end with their front end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.faults import scenarios
from benchmarks.faults.rank_server import RankServer, started
from benchmarks.faults.scenarios import ScenarioStage

pytestmark = pytest.mark.slow

LEAVE_S = 120.0


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankServer]:
    with started(model, 2, "parallel.exchange=gloo", "parallel.delay_us=10000", "step_times=off") as server:
        yield server


def test_the_leader_is_lost_and_the_last_rank_goes_on(two: RankServer) -> None:
    verdict = scenarios.last_but_one(ScenarioStage(two, max_tokens=128))
    assert verdict.passed, verdict.seen


def test_all_killed_is_said_to_the_client_and_the_service_is_back(two: RankServer) -> None:
    two.wait_for_all()
    verdict = scenarios.all_killed(ScenarioStage(two, max_tokens=128), LEAVE_S)
    assert verdict.passed, verdict.seen
    assert "there was no other rank" in verdict.seen


def test_ranks_do_not_outlive_the_front_end(two: RankServer) -> None:
    two.wait_for_all()
    ranks = [psutil.Process(pid) for pid in two.status().pids.values()]
    os.kill(two.process.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(ranks, timeout=LEAVE_S)
    assert not left
