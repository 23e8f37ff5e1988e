"""A steady load on a server: clients that ask, compare the answer with the known right one, and ask again.

This module knows HTTP but no ranks.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from benchmarks.faults.observed_stream import STREAMED, TIMEOUT_S, ObservedStream
from benchmarks.faults.requests import body

# Tokens of short and of long answers.
SHORT, LONG = 24, 256


@dataclass(frozen=True)
class LoadQuestion:
    """A request of the load, which is sent again and again."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True)
class LoadAnswer:
    """One answer as its client judged it.

    longest_pause_s: the longest time without an event; for an answer that is not streamed, all its time. wrong: what
    was wrong with it, or None.
    """

    question: str
    is_streamed: bool
    seconds: float
    longest_pause_s: float
    wrong: str | None


@dataclass
class SoakLoad:
    """Clients that draw their questions at random until they are told to stop. Half of the answers are streamed.

    right: the right answers, by the questions' names. answers: all that were judged.
    """

    url: str
    questions: list[LoadQuestion]
    num_clients: int
    seed: int
    right: dict[str, ObservedStream] = field(default_factory=dict)
    answers: list[LoadAnswer] = field(default_factory=list)

    async def learn(self) -> None:
        """Gets the right answers from the undisturbed server. Raises ValueError if a question has no answer."""
        async with self._client() as client:
            for question in self.questions:
                self.right[question.name] = await ask(client, question.body, streams=True)
                if not self.right[question.name].is_complete:
                    raise ValueError(f"{question.name}: no answer ({self.right[question.name].error})")

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Asks as long as it goes on, and waits for the answers that are under way then."""
        await asyncio.gather(*(self._ask_on(number, goes_on) for number in range(self.num_clients)))

    async def _ask_on(self, number: int, goes_on: Callable[[], bool]) -> None:
        draw = random.Random(f"{self.seed} {number}")
        async with self._client() as client:
            while goes_on():
                question, streams = draw.choice(self.questions), draw.random() < 0.5
                seen = await ask(client, question.body, streams)
                self.answers.append(self.judge(question.name, streams, seen))

    def judge(self, name: str, streams: bool, seen: ObservedStream) -> LoadAnswer:
        times = [seen.sent_at, *seen.times, seen.ended_at]
        longest = max(later - earlier for earlier, later in pairwise(times))
        right = self.right[name]
        wrong = None if seen.says_the_same(right) else seen.error or _describe_difference(seen.text, right.text)
        return LoadAnswer(name, streams, seen.ended_at - seen.sent_at, longest, wrong)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S)


def _describe_difference(text: str, right: str) -> str:
    """Where an answer leaves the right one, so that the token can be looked up."""
    pairs = enumerate(zip(text, right, strict=False))
    at = next((number for number, (own, other) in pairs if own != other), min(len(text), len(right)))
    return f"another answer: {text!r}, which leaves {right!r} at character {at}"


def questions(prompts: list[str], short: int = SHORT, long: int = LONG) -> list[LoadQuestion]:
    """Short and long, greedy and sampled questions on each prompt. short, long: tokens of their answers."""
    return [
        LoadQuestion(f"{size}, {kind}, prompt {number}", body(kind, prompt, max_tokens))
        for number, prompt in enumerate(prompts)
        for kind in ("greedy", "sampled")
        for size, max_tokens in (("short", short), ("long", long))
    ]


async def ask(client: httpx.AsyncClient, request: dict[str, Any], streams: bool) -> ObservedStream:
    """Asks once and returns the answer, streamed or whole. If something goes wrong, its `error` says what."""
    seen = ObservedStream(time.monotonic())
    try:
        if streams:
            await _stream(client, request, seen)
        else:
            answer = await client.post("/v1/completions", json=request)
            seen.take(answer.json())
    except httpx.TransportError as error:
        seen.error = f"{type(error).__name__}: {error}"
    seen.ended_at = time.monotonic()
    return seen


async def _stream(client: httpx.AsyncClient, request: dict[str, Any], seen: ObservedStream) -> None:
    async with client.stream("POST", "/v1/completions", json={**request, **STREAMED}) as response:
        if response.status_code != httpx.codes.OK:
            seen.take(json.loads(await response.aread()))
        async for line in response.aiter_lines():
            seen.take_line(line)
