"""Many requests divide the ranks, and few bring them together again: what clients get stays what they get alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.faults.rank_server import RankServer, serving
from benchmarks.faults.requests import KINDS, body
from tests.slow import exhaustive_except

NUM_REQUESTS, TOKENS = 9, 160
# What the log says of a divided epoch. The state itself may be over before anybody asks for it.
DIVIDED = "each with requests of its own"
Answer = tuple[str, list[str], str]


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[RankServer]:
    with serving(model, 2) as server:
        yield server


def bodies() -> list[dict[str, Any]]:
    """Requests of all kinds, some of which end early, so that the ranks' shares become uneven."""
    kinds = list(KINDS)
    return [
        body(kinds[number % 3], f"def number_{number}(", TOKENS // (4 if number % 2 else 1))
        for number in range(NUM_REQUESTS)
    ]


def answer(server: RankServer, asked: dict[str, Any]) -> Answer:
    """The answer's text, its tokens if log-probabilities were asked for, and why it ended."""
    reply = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=600.0)
    assert reply.status_code == httpx.codes.OK, f"{reply.text}\n{server.log}"
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"] if choice["logprobs"] else [], choice["finish_reason"]


def cached(server: RankServer, prompt: list[int]) -> int:
    """Asks a short question. Returns how many of the prompt's tokens were not computed for it."""
    reply = httpx.post(f"{server.url}/v1/completions", json=body("greedy", prompt, 4), timeout=600.0)
    return reply.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def alone(two: RankServer) -> list[Answer]:
    """What each request yields where it is the only one: steps are shared then."""
    answers = [answer(two, asked) for asked in bodies()]
    assert not two.status().divided
    return answers


def start_all(server: RankServer, pool: ThreadPoolExecutor) -> list[Future[Answer]]:
    """Sends all requests at once, and waits until ranks have begun to serve their own."""
    before = server.log.count(DIVIDED)
    found = [pool.submit(answer, server, asked) for asked in bodies()]
    server.wait_until(lambda _: server.log.count(DIVIDED) > before, "each rank serves requests of its own")
    return found


def check(found: list[Future[Answer]], alone: list[Answer]) -> None:
    for number, (future, expected) in enumerate(zip(found, alone, strict=True)):
        assert future.result() == expected, number


@pytest.mark.slow
def test_a_stream_goes_on_while_the_ranks_divide_and_come_together(two: RankServer, alone: list[Answer]) -> None:
    asked = body("greedy", "def number_0(", 6 * TOKENS)
    expected = answer(two, asked)
    before = two.status().epoch or 0
    with ThreadPoolExecutor(NUM_REQUESTS + 1) as pool:
        stream = pool.submit(answer, two, asked)
        check(start_all(two, pool), alone)
        assert stream.result() == expected
    two.wait_until(lambda status: not status.divided, "the ranks share steps again")
    assert (two.status().epoch or 0) >= before + 2


@pytest.mark.slow
def test_what_was_computed_for_a_prompt_is_used_again_when_the_ranks_have_divided(
    two: RankServer, alone: list[Answer]
) -> None:
    prompt = [number % 90 + 20 for number in range(200)]
    assert cached(two, prompt) == 0
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        found = start_all(two, pool)
        assert cached(two, [*prompt, 33]) >= 190
        check(found, alone)
    two.wait_until(lambda status: not status.divided, "the ranks share steps again")
    assert cached(two, [*prompt, 34]) >= 190


@pytest.mark.parametrize("victim", exhaustive_except([0, 1], 0))
def test_a_rank_lost_while_each_serves_its_own(two: RankServer, alone: list[Answer], victim: int) -> None:
    two.wait_for_all()
    two.wait_until(lambda status: not status.divided, "the ranks share steps")
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        found = start_all(two, pool)
        gone = two.signal([victim])
        check(found, alone)
    two.wait_for_all(gone)


@pytest.mark.slow
def test_with_dp_each_rank_serves_its_own_from_the_start(model: Path, alone: list[Answer]) -> None:
    with serving(model, 2, "parallel=dp") as server:
        server.wait_until(lambda status: status.divided, "each rank serves requests of its own")
        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            check([pool.submit(answer, server, asked) for asked in bodies()], alone)
        assert server.status().divided


@pytest.mark.exhaustive
def test_four_ranks_form_groups_of_two_and_outlive_a_loss(model: Path, alone: list[Answer]) -> None:
    with serving(model, 4) as server, ThreadPoolExecutor(NUM_REQUESTS) as pool:
        found = [pool.submit(answer, server, asked) for asked in bodies()[:5]]
        server.wait_until(lambda _: "each 2 with requests of its own" in server.log, "there are two groups")
        check(found, alone[:5])
        server.wait_until(lambda status: not status.divided, "the ranks share steps again")
        found = [pool.submit(answer, server, asked) for asked in bodies()[:5]]
        server.wait_until(lambda status: status.divided, "there are groups")
        gone = server.signal([1])
        check(found, alone[:5])
        server.wait_for_all(gone)
