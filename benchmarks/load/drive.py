"""Drives a scenario against one system: which request is sent when, and to which of its servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import httpx

from benchmarks.load.client import RequestRecord, stream
from benchmarks.load.prompts import LoadRequest
from benchmarks.load.scenarios import ClosedLoop, Intrusion, OpenLoop, Phase, Scenario

# Makes a request's path and body in the dialect of a server.
MakeBody = Callable[[LoadRequest], tuple[str, dict[str, Any]]]


class Driver:
    """Clients of one system. Requests go to its servers by turn.

    on_done: called with each record when its request has ended.
    """

    def __init__(
        self,
        urls: list[str],
        make_body: MakeBody,
        timeout_s: float,
        on_done: Callable[[RequestRecord], None] = lambda record: None,
    ):
        self._next_url: Iterator[str] = cycle(urls)
        self._make_body = make_body
        self._timeout_s = timeout_s
        self._on_done = on_done

    async def run(self, scenario: Scenario) -> list[RequestRecord]:
        """All requests' records. The phases come one after the other."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=self._timeout_s, limits=limits, trust_env=False) as client:
            found: list[RequestRecord] = []
            for name, phase in scenario.phases.items():
                found += await self._run_phase(client, name, phase)
            return found

    async def _run_phase(self, client: httpx.AsyncClient, name: str, phase: Phase) -> list[RequestRecord]:
        match phase:
            case ClosedLoop():
                return await self._closed(client, name, phase)
            case OpenLoop():
                return await self._open(client, name, phase)
            case Intrusion():
                return await self._intrude(client, name, phase)

    async def _closed(self, client: httpx.AsyncClient, name: str, phase: ClosedLoop) -> list[RequestRecord]:
        waiting = iter(phase.requests)
        found: list[RequestRecord] = []

        async def ask_on() -> None:
            for request in waiting:
                found.append(await self._ask(client, name, request, time.perf_counter()))

        await asyncio.gather(*(ask_on() for _ in range(phase.num_streams)))
        return found

    async def _open(self, client: httpx.AsyncClient, name: str, phase: OpenLoop) -> list[RequestRecord]:
        begin = time.perf_counter()

        async def ask_at(request: LoadRequest, due_at: float) -> RequestRecord:
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            return await self._ask(client, name, request, due_at)

        asked = (ask_at(request, begin + due) for request, due in zip(phase.requests, phase.due_s, strict=True))
        return await asyncio.gather(*asked)

    async def _intrude(self, client: httpx.AsyncClient, name: str, phase: Intrusion) -> list[RequestRecord]:
        """The stream's record and then the intruder's, which is sent once the stream is far enough, or has ended."""
        is_far = asyncio.Event()

        def on_piece(number: int) -> None:
            if number >= phase.after:
                is_far.set()

        async def ask_stream() -> RequestRecord:
            record = await self._ask(client, name, phase.stream, time.perf_counter(), on_piece)
            is_far.set()
            return record

        async def ask_intruder() -> RequestRecord:
            await is_far.wait()
            return await self._ask(client, name, phase.intruder, time.perf_counter())

        return [*await asyncio.gather(ask_stream(), ask_intruder())]

    async def _ask(
        self,
        client: httpx.AsyncClient,
        phase: str,
        request: LoadRequest,
        due_at: float,
        on_piece: Callable[[int], None] = lambda number: None,
    ) -> RequestRecord:
        record = RequestRecord(phase, due_at)
        path, body = self._make_body(request)
        await stream(client, f"{next(self._next_url)}{path}", body, record, on_piece)
        self._on_done(record)
        return record
