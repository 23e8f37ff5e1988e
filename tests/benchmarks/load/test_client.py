"""A stream is read from the pieces in which it came, however it was cut, and an error is kept with its message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from benchmarks.load.client import RequestRecord, read_pieces, stream

EVENTS = (
    b'data: {"choices": [{"delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}], "usage": null}\n\n'
    b'data: {"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\ndata: [DONE]\n\n'
)


def read(*pieces: tuple[float, bytes]) -> RequestRecord:
    record = RequestRecord("all", 0.0)
    read_pieces(pieces, record)
    return record


@pytest.mark.parametrize("cut", range(1, len(EVENTS) - 1, 7))
def test_a_stream_is_the_same_however_it_is_cut(cut: int):
    found = read((1.0, EVENTS[:cut]), (1.0, EVENTS[cut:]))
    assert (found.times, found.num_tokens, found.prompt_tokens, found.error) == ([1.0, 1.0], 3, 7, None)


def test_an_event_has_the_time_of_its_last_byte_and_an_opening_is_no_text():
    before, text, _ = EVENTS.split(b'data: {"choices": [{"delta": {"content": "')
    found = read((1.0, before), (2.0, b'data: {"choices": [{"delta": {"content": "' + text[:5]), (3.0, text[5:]))
    assert found.times == [3.0]
    assert found.error == "the stream ended early"


def test_completions_are_read_too():
    found = read(
        (1.5, b'data: {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}\n')
    )
    assert (found.times, found.num_tokens, found.error) == ([1.5], 1, None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(429, json={"error": {"message": "too many\nrequests"}}), "HTTP 429: too many requests"),
        (httpx.Response(422, json={"detail": "Unexpected fields"}), "HTTP 422: Unexpected fields"),
        (httpx.Response(500, text="Internal"), "HTTP 500: Internal"),
        (httpx.ConnectError("refused"), "ConnectError: refused"),
    ],
)
def test_a_request_that_fails_raises_nothing(answer: httpx.Response | httpx.HTTPError, said: str):
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return httpx.Response(answer.status_code, content=in_pieces(answer.content))

    async def in_pieces(content: bytes) -> AsyncIterator[bytes]:
        yield content

    async def ask() -> RequestRecord:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            record = RequestRecord("all", 0.0)
            await stream(client, "http://server/v1/completions", {}, record)
            return record

    found = asyncio.run(ask())
    assert found.error == said and found.ended_at >= found.sent_at > 0
