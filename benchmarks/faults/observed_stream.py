"""One streamed completion as its client sees it: what came, when, and how long the client waited.

This module knows HTTP but no ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import httpx

TIMEOUT_S = 120.0
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class ObservedStream:
    """What a client saw of one completion.

    sent_at, times, ended_at: of the request, of each event and of the end, by time.monotonic(). tokens: their names, if
    the request asked for log-probabilities. num_tokens: as the server counted them. error: the message that cut the
    stream short.
    """

    sent_at: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    tokens: list[str] = field(default_factory=list)
    num_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    ended_at: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.error is None and self.finish_reason is not None and self.num_tokens is not None

    def says_the_same(self, other: ObservedStream) -> bool:
        """Whether both streams are complete and have the same tokens."""
        own, others = ((s.text, s.tokens, s.num_tokens, s.finish_reason) for s in (self, other))
        return self.is_complete and other.is_complete and own == others

    @property
    def first_pause_s(self) -> float:
        """Seconds until the first event, which is the prefill."""
        return self.times[0] - self.sent_at

    @property
    def usual_pause_s(self) -> float:
        """The median of the seconds between two events."""
        return median(later - earlier for earlier, later in pairwise(self.times))

    def take(self, chunk: dict[str, Any]) -> None:
        """Adds a chunk, a whole answer or an error. Raises KeyError if it is none of these."""
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        for choice in chunk["choices"]:
            self.times.append(time.monotonic())
            self.text += choice["text"]
            self.tokens += (choice["logprobs"] or {"tokens": []})["tokens"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if chunk.get("usage"):
            self.num_tokens = chunk["usage"]["completion_tokens"]

    def take_line(self, line: str) -> None:
        """Adds one line of the event stream."""
        data = line.removeprefix("data: ")
        if data and data != "[DONE]":
            self.take(json.loads(data))


def observe_stream(
    url: str, body: dict[str, Any], on_event: Callable[[ObservedStream], None] = lambda seen: None
) -> ObservedStream:
    """Streams POST /v1/completions until it ends or fails.

    on_event: called with what came so far when the request is sent, and after each event.
    """
    seen = ObservedStream(time.monotonic())
    on_event(seen)
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, **STREAMED}, timeout=TIMEOUT_S) as response:
            if response.status_code != httpx.codes.OK:
                seen.take(json.loads(response.read()))
            for line in response.iter_lines():
                before = len(seen.times)
                seen.take_line(line)
                if len(seen.times) > before:
                    on_event(seen)
    except httpx.TransportError as error:
        seen.error = f"{type(error).__name__}: {error}"
    seen.ended_at = time.monotonic()
    return seen


def gap_s(disturbed: ObservedStream, undisturbed: ObservedStream, at: float) -> float:
    """The client's longest extra wait for an event after the time `at`, beyond what it usually waits for that event."""
    begins = [disturbed.sent_at, *disturbed.times]
    usual = [undisturbed.first_pause_s] + [undisturbed.usual_pause_s] * (len(disturbed.times) - 1)
    pauses = zip(begins, disturbed.times, usual)
    return max((end - begin - expected for begin, end, expected in pauses if end > at), default=0.0)
