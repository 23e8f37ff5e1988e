"""One streamed request as its client sees it. While it runs, pieces of the answer are only kept with their times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx


@dataclass
class RequestRecord:
    """What a client saw of one request. Times are in seconds of time.perf_counter().

    phase: of the scenario. due_at: when it should have been sent. times: when text came. num_tokens, prompt_tokens: as
    the server counted them, None if it did not say. error: why the answer is not whole.
    """

    phase: str
    due_at: float
    sent_at: float = 0.0
    times: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    num_tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds until the first text, from when the request should have been sent."""
        return self.times[0] - self.due_at

    @property
    def latency_s(self) -> float:
        return self.ended_at - self.due_at

    @property
    def per_token_s(self) -> float | None:
        """Seconds for each token after the first text; None for an answer of one token."""
        later = (self.num_tokens or 0) - 1
        return (self.times[-1] - self.times[0]) / later if later > 0 else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between two pieces of text."""
        return [later - earlier for earlier, later in pairwise(self.times)]


async def stream(
    client: httpx.AsyncClient,
    url: str,
    body: dict[str, Any],
    record: RequestRecord,
    on_piece: Callable[[int], None] = lambda number: None,
) -> None:
    """Sends a request and fills its record. Errors of the request are written to the record and raised to nobody.

    on_piece: called with the number of pieces so far whenever one comes.
    """
    pieces: list[tuple[float, bytes]] = []
    record.sent_at = time.perf_counter()
    try:
        async with client.stream("POST", url, json=body) as response:
            async for piece in response.aiter_raw():
                pieces.append((time.perf_counter(), piece))
                on_piece(len(pieces))
            status = response.status_code
        record.ended_at = time.perf_counter()
        if status == httpx.codes.OK:
            read_pieces(pieces, record)
        else:
            record.error = f"HTTP {status}: {_message(b''.join(piece for _, piece in pieces))}"
    except httpx.HTTPError as error:
        record.ended_at = time.perf_counter()
        record.error = f"{type(error).__name__}: {error}".rstrip(": ")


def read_pieces(pieces: Sequence[tuple[float, bytes]], record: RequestRecord) -> None:
    """Reads the events of a stream from the pieces in which it came, into its record."""
    finished = False
    for at, data in _events(pieces):
        try:
            chunk = json.loads(data)
            finished = _read_chunk(at, chunk, record) or finished
        except (ValueError, KeyError, TypeError, AttributeError):
            record.error = f"an event that cannot be read: {data[:200].decode(errors='replace')}"
    if record.error is None and not (finished and record.times):
        record.error = "the stream ended early"
    if record.error is None and record.num_tokens is None:
        record.error = "the stream did not say its number of tokens"


def _events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each event, and when its last byte came."""
    rest = b""
    for at, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield at, data


def _read_chunk(at: float, chunk: dict[str, Any], record: RequestRecord) -> bool:
    """Reads one event of a completion or a chat. Returns whether it says that the answer is finished."""
    if chunk.get("error"):
        error = chunk["error"]
        record.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return True
    finished = False
    for choice in chunk["choices"]:
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            record.times.append(at)
        finished = bool(choice.get("finish_reason")) or finished
    if usage := chunk.get("usage"):
        record.num_tokens, record.prompt_tokens = usage["completion_tokens"], usage.get("prompt_tokens")
    return finished


def _message(body: bytes) -> str:
    """What an error's body says, in at most one line."""
    text = body.decode(errors="replace")
    try:
        found = json.loads(text)
        error = found.get("error", found.get("detail", text))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300]
