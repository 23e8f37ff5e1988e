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
from tests.slow import exhaustive_except

pytestmark = pytest.mark.slow

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fib"
# So many that the text goes on long after a client has seen a step and killed a rank, however busy the machine is.
TOKENS = 120
# A rank that is slow to answer, as others compute, is not lost; that a process has ended is seen at once.
PATIENT = "supervisor.answer_timeout_s=60"
LOOKAHEAD = {"method": "lookahead", "window": 15, "ngram": 5, "guesses": 15}
BODY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "lookahead_trace": True}


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankServer]:
    slow = "parallel.delay_us=20000"  # so that a rank is killed during a text
    with serving(model, 2, "server.page_kills_ranks=true", "parallel=lp", slow, "step_times=off", PATIENT) as server:
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


def emitted_in(found: list[dict[str, Any]]) -> list[int]:
    """The tokens that the traces of these chunks tell."""
    return [token for chunk in found if "lookahead" in chunk for token in chunk["lookahead"]["emitted"]]


def assert_continued(found: list[dict[str, Any]], undisturbed: list[dict[str, Any]]) -> None:
    """Asserts what is promised of a text in which a rank was lost, at whatever moment that was.

    The text is whole. Each step is told once, in its order. What only the ranks that are left knew of, as the leader
    was killed before it told it, comes as one chunk without a trace; there is none if they knew nothing more.
    """
    assert text_of(found) == text_of(undisturbed)
    steps = [chunk["lookahead"]["step"] for chunk in found if "lookahead" in chunk]
    assert steps == sorted(set(steps))
    untold = [number for number, chunk in enumerate(found) if "lookahead" not in chunk]
    assert len(untold) <= 1
    at = untold[0] if untold else len(found)
    tokens, before, after = emitted_in(undisturbed), emitted_in(found[:at]), emitted_in(found[at + 1 :])
    assert tokens[: len(before)] == before and tokens[len(tokens) - len(after) :] == after
    num_untold = len(tokens) - len(before) - len(after)
    assert num_untold > 0 if untold else num_untold == 0


@pytest.mark.parametrize("victim", exhaustive_except([1, 0], 0))
def test_a_text_goes_on_without_a_killed_rank(two: RankServer, victim: int) -> None:
    two.wait_for_all()
    undisturbed = chunks(two, max_tokens=TOKENS, decode=LOOKAHEAD)
    assert len(emitted_in(undisturbed)) == TOKENS
    before, killed_in = two.status().pids, []
    assert state(two)["may_kill"] is True

    def strike(trace: dict[str, Any]) -> None:
        if trace["step"] == 8:
            assert kill(two, victim).status_code == 202
            again = kill(two, victim)
            assert again.status_code == 409 and f"rank {victim}" in again.json()["error"]["message"]
            other = kill(two, 1 - victim)
            assert other.status_code == 409 and "no other rank" in other.json()["error"]["message"]
            killed_in.append(trace["step"])

    found = chunks(two, strike, max_tokens=TOKENS, decode=LOOKAHEAD)
    assert killed_in, "no rank was killed"
    assert_continued(found, undisturbed)
    alone = [set(chunk["lookahead"]["ranks"]) for chunk in found if "lookahead" in chunk]
    assert {str(1 - victim)} in alone[9:]  # it serves under its own number, wherever it stands in the epoch
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
