"""Traces from real ranks over HTTP, and a rank that a client kills in the middle of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.faults.rank_server import RankServer, serving
from tests.launch.server.harness import eventually

pytestmark = pytest.mark.slow

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fib"
LOOKAHEAD = {"method": "lookahead", "window": 15, "ngram": 5, "guesses": 15}
BODY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "lookahead_trace": True}


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankServer]:
    slow = "parallel.delay_us=10000"  # so that a rank is killed during a text
    with serving(model, 2, "server.page_kills_ranks=true", "parallel=lp", slow, "step_times=off") as server:
        yield server


def chunks(
    server: RankServer, on_step: Callable[[dict[str, Any]], None] = lambda trace: None, **body: Any
) -> list[dict[str, Any]]:
    """The chunks of a completion. on_step: called with each trace as it comes."""
    found = []
    given = {**BODY, "stream": True, **body}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=given, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line[6:]))
                if "lookahead" in found[-1]:
                    on_step(found[-1]["lookahead"])
    return found


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in found)


def state(server: RankServer) -> dict[str, Any]:
    return httpx.get(f"{server.url}/lookahead/state").json()


def kill(server: RankServer, rank: int | str) -> httpx.Response:
    return httpx.post(f"{server.url}/lookahead/ranks/{rank}/kill")


def test_nodes_say_which_rank_has_computed_them(two: RankServer) -> None:
    two.wait_for_all()
    traces = [chunk["lookahead"] for chunk in chunks(two, max_tokens=40, decode=LOOKAHEAD)]
    assert any(set(trace["ranks"]) == {"0", "1"} for trace in traces)
    for trace in traces:
        assert set(trace["ranks"]) <= {"0", "1"} and trace["sequences"] == 1
        if not trace["omitted"]:  # the root is in both parts
            most = max(trace["ranks"].count("0"), trace["ranks"].count("1") + 1)
            assert trace["rows"] >= min(most, len(trace["tokens"]))


@pytest.mark.parametrize("victim", [1, 0])
def test_a_text_goes_on_without_a_killed_rank(two: RankServer, victim: int) -> None:
    two.wait_for_all()
    undisturbed = text_of(chunks(two, max_tokens=90, decode=LOOKAHEAD))
    before, seen = two.status().pids, []
    assert state(two)["may_kill"] is True

    def strike(trace: dict[str, Any]) -> None:
        if trace["step"] == 8:
            assert kill(two, victim).status_code == 202
            again = kill(two, victim)
            assert again.status_code == 409 and f"rank {victim}" in again.json()["error"]["message"]
            other = kill(two, 1 - victim)
            assert other.status_code == 409 and "no other rank" in other.json()["error"]["message"]
            seen.append(state(two)["ranks"])

    found = chunks(two, strike, max_tokens=90, decode=LOOKAHEAD)
    assert text_of(found) == undisturbed
    # A step of which only the survivor knew, as the leader was killed before it told it, has no trace any more.
    traces = [chunk["lookahead"] for chunk in found if "lookahead" in chunk]
    assert len(found) - len(traces) <= 1
    steps = [trace["step"] for trace in traces]
    assert steps == sorted(set(steps))  # and no step is told twice
    emitted = sum(len(trace["emitted"]) for trace in traces)
    assert emitted == 90 if len(found) == len(traces) else emitted < 90
    alone = [set(trace["ranks"]) for trace in traces if trace["step"] > 12]
    assert {str(1 - victim)} in alone  # it serves under its own number, wherever it stands in the epoch
    two.wait_for_all(gone=[before[victim]])
    assert [rank["state"] for rank in state(two)["ranks"]] == ["serving", "serving"]


def test_what_cannot_be_killed_is_refused(two: RankServer) -> None:
    two.wait_for_all()
    for rank in (2, -1, "x", "1.0"):
        answer = kill(two, rank)
        assert answer.status_code == 404 and "the ranks are 0, 1" in answer.json()["error"]["message"], answer.text


def test_requests_of_their_own_say_which_rank_serves_them(model: Path) -> None:
    """parallel=dp: each rank leads itself. The curve is that of a rank alone."""
    with serving(model, 2, "parallel=dp", "step_times=measure") as server:
        eventually(lambda: state(server)["curve"] is not None, within_s=60)  # a rank measures once it serves
        curve = state(server)["curve"]
        assert [rows for rows, _ in curve] == sorted(rows for rows, _ in curve)
        assert all(milliseconds > 0 for _, milliseconds in curve)
        ranks = set()
        for _ in range(3):
            body = {"n": 4, "max_tokens": 24, "decode": LOOKAHEAD}
            ranks |= {digit for chunk in chunks(server, **body) for digit in chunk["lookahead"]["ranks"]}
        assert ranks == {"0", "1"}
        assert kill(server, 0).status_code == 403
