"""A steady load on a server whose right answers are known: clients that ask, compare and ask again.

Knows HTTP, and nothing of ranks.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from benchmarks.faults.requests import body
from benchmarks.faults.stream import STREAMED, TIMEOUT_S, Stream

SHORT, LONG = 24, 256
"""Tokens of the answers."""


@dataclass(frozen=True)
class Question:
    """A request of the load, as it is sent again and again."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """wrong: what was not as it should be, else None. longest_pause_s: without an event; of a whole one, all of it."""

    question: str
    is_streamed: bool
    seconds: float
    longest_pause_s: float
    wrong: str | None


@dataclass
class Load:
    """`num_clients` clients that draw their questions at random, half of the answers streamed, until told to stop."""

    url: str
    questions: list[Question]
    num_clients: int
    seed: int
    right: dict[str, Stream] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    async def learn(self) -> None:
        """The right answers, from a server that nobody disturbs. Raises ValueError if there is none to a question."""
        async with self._client() as client:
            for question in self.questions:
                self.right[question.name] = await ask(client, question.body, streams=True)
                if not self.right[question.name].is_complete:
                    raise ValueError(f"{question.name}: no answer ({self.right[question.name].error})")

    async def run(self, until: float) -> None:
        """Asks until that time (time.monotonic()), and waits for the answers that are under way."""
        await asyncio.gather(*(self._ask_on(number, until) for number in range(self.num_clients)))

    async def _ask_on(self, number: int, until: float) -> None:
        draw = random.Random(f"{self.seed} {number}")
        async with self._client() as client:
            while time.monotonic() < until:
                question, streams = draw.choice(self.questions), draw.random() < 0.5
                seen = await ask(client, question.body, streams)
                self.answers.append(self.judge(question.name, streams, seen))

    def judge(self, name: str, streams: bool, seen: Stream) -> Answer:
        times = [seen.sent_at, *seen.times, seen.ended_at]
        longest = max(later - earlier for earlier, later in pairwise(times))
        wrong = None if seen.says_the_same(self.right[name]) else seen.error or f"another answer: {seen.text!r}"
        return Answer(name, streams, seen.ended_at - seen.sent_at, longest, wrong)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S)


def questions(prompts: list[str]) -> list[Question]:
    """Short and long ones, greedy and sampled, of each prompt."""
    return [
        Question(f"{size}, {kind}, prompt {number}", body(kind, prompt, max_tokens))
        for number, prompt in enumerate(prompts)
        for kind in ("greedy", "sampled")
        for size, max_tokens in (("short", SHORT), ("long", LONG))
    ]


async def ask(client: httpx.AsyncClient, request: dict[str, Any], streams: bool) -> Stream:
    """The answer, whole or streamed; what goes wrong is its `error`."""
    seen = Stream(time.monotonic())
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


async def _stream(client: httpx.AsyncClient, request: dict[str, Any], seen: Stream) -> None:
    async with client.stream("POST", "/v1/completions", json={**request, **STREAMED}) as response:
        if response.status_code != httpx.codes.OK:
            seen.take(json.loads(await response.aread()))
        async for line in response.aiter_lines():
            seen.take_line(line)
