"""Ranks that verify and ranks that draft ahead, over HTTP: who did what in which step, and what a kill leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.faults.rank_server import RankServer, serving
from tests.launch.supervisor.test_traced_ranks import PATIENT, TOKENS, assert_continued, chunks, emitted_in, kill

pytestmark = pytest.mark.slow

SLOW = "parallel.delay_us=20000"  # so that a rank is killed during a text
AHEAD, LOOKAHEAD = {"method": "draft_model"}, {"method": "lookahead", "window": 15, "ngram": 5, "guesses": 15}


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankServer]:
    """Two ranks whose model drafts for itself."""
    settings = ["server.page_kills_ranks=true", "parallel=lp", SLOW, "step_times=off", PATIENT, "draft.weights=int8"]
    with serving(model, 2, *settings) as server:
        yield server


def test_steps_say_who_verified_and_who_drafted_for_what(two: RankServer) -> None:
    two.wait_for_all()
    found = chunks(two, max_tokens=60, decode=AHEAD)
    traces = [chunk["lookahead"] for chunk in found if "step" in chunk.get("lookahead", {})]
    ahead = [trace for trace in traces if trace["drafting"]]
    assert len(ahead) > len(traces) / 2
    for trace in ahead:
        assert {trace["drafting"], *trace["ranks"]} == {"0", "1"} and len(set(trace["ranks"])) == 1
        assert all(str(rank) == trace["drafting"] for rank, _, _ in trace["drafted_for"])
        if trace["came_true"] is not None:
            end = [int(trace["drafting"]), [0, *trace["accepted"]][-1], trace["emitted"][-1]]
            assert trace["drafted_for"][trace["came_true"]] == end
    assert any(trace["came_true"] is not None for trace in ahead) and any("f" in trace["sources"] for trace in traces)
    legend = httpx.get(f"{two.url}/lookahead/state").json()["legend"]
    assert legend["f"] == "second model, on a rank that drafts ahead"
    body = {"prompt": "def f(", "max_tokens": 60, "ignore_eos": True, "temperature": 0, "decode": AHEAD}
    counted = httpx.post(f"{two.url}/v1/completions", json=body, timeout=60).json()["lookahead"]["drafted_ahead"]
    assert 0 < counted["expected"] <= counted["steps"]


def test_requests_without_a_draft_model_are_shared(two: RankServer) -> None:
    two.wait_for_all()
    traces = [chunk["lookahead"] for chunk in chunks(two, max_tokens=40, decode=LOOKAHEAD)]
    assert sum(set(trace["ranks"]) == {"0", "1"} for trace in traces) > len(traces) / 2
    assert not any(trace["drafting"] or trace["drafted_for"] for trace in traces)


@pytest.mark.parametrize("role", ["verifies", "drafts"])
def test_a_text_goes_on_without_the_rank_in_a_role(two: RankServer, role: str) -> None:
    two.wait_for_all()
    undisturbed = chunks(two, max_tokens=TOKENS, decode=AHEAD)
    before, killed = two.status().pids, list[int]()
    gaps, last = list[float](), [time.monotonic()]

    def strike(trace: dict[str, Any]) -> None:
        now = time.monotonic()
        gaps.append(now - last[0])
        last[0] = now
        if trace["step"] >= 6 and trace["drafting"] and not killed:
            killed.append(int(trace["ranks"][0] if role == "verifies" else trace["drafting"]))
            assert kill(two, killed[0]).status_code == 202

    found = chunks(two, strike, max_tokens=TOKENS, decode=AHEAD)
    assert killed, "no rank was killed"
    print(f"{role}: the longest wait for a step was {max(gaps[1:]):.3f} s")
    assert_continued(found, undisturbed)
    assert len(emitted_in(undisturbed)) == TOKENS
    two.wait_for_all(gone=[before[killed[0]]])
