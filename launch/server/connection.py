"""What a client does over its connection: it sends a body, receives events, and may go away at any time.

A body is limited in size, checked, and refused with one readable message. Work for a client ends when the client
leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from launch.server import errors
from launch.server.errors import ApiError
from launch.server.fields import Body

Kind = TypeVar("Kind", bound=Body)
T = TypeVar("T")

# A body that is too large is read to its end, up to this many times the limit, so that the client sees the answer.
_DISCARDED_SHARE = 16
# Seconds after which the server stops reading a body that is too large.
_DISCARD_S = 10.0


def body_of(kind: type[Kind]) -> Callable[[Request], Awaitable[Kind]]:
    """Returns a FastAPI dependency that reads the body as `kind`."""

    async def read(request: Request) -> Kind:
        data = await _read(request, request.app.state.server.settings.max_body_bytes)
        try:
            data.decode()
        except UnicodeDecodeError as error:
            message = f"the body is not valid UTF-8 (at byte {error.start})"
            raise errors.bad_request(message, code="invalid_utf8") from None
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            raise _readable(error, kind) from None

    return read


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit and "expect" in request.headers:
        raise errors.body_too_large(limit)  # the client has not sent it yet
    parts, size = [], 0
    stream = request.stream()
    async for part in stream:
        size += len(part)
        if size > limit:
            parts.clear()
            await _discard(stream, limit * _DISCARDED_SHARE)
            raise errors.body_too_large(limit)
        parts.append(part)
    return b"".join(parts)


async def _discard(stream: Any, most_bytes: int) -> None:
    try:
        async with asyncio.timeout(_DISCARD_S):
            async for part in stream:
                most_bytes -= len(part)
                if most_bytes < 0:
                    return
    except TimeoutError:
        return


def _readable(error: ValidationError, kind: type[Body]) -> ApiError:
    """Describes the first fault in one sentence that names the field."""
    fault = error.errors(include_url=False)[0]
    place = ""
    for step in fault["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    match fault["type"]:
        case "json_invalid":
            reason = fault.get("ctx", {}).get("error")
            return errors.bad_request(f"the body is not valid JSON: {reason}", code="invalid_json")
        case "model_type" if not place:
            return errors.bad_request("the body must be a JSON object", code="invalid_json")
        case "missing":
            message = f"{place} is required"
        case "extra_forbidden":
            message = f"{place} is not a field that this server knows; leave it out"
        case "refused":
            message = fault["msg"]
        case _:
            message = f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}, not {reprlib.repr(fault['input'])}"
    return errors.bad_request(message, param=place[:100] or named_field(message, kind))


def named_field(message: str, kind: type[Body]) -> str | None:
    """Returns the first field of the body that a message names."""
    return next((word for word in re.findall(r"\w+", message) if word in kind.model_fields), None)


class ClientGone(Exception):
    """The client has closed its connection."""


async def race(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Returns the result of `work`. If the client goes away first, cancels the work and raises ClientGone.

    receive: the ASGI channel of a request whose body has been read.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events, each sent at once.

    on_end: called when all events are sent or the client has gone away.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]):
        super().__init__()
        self.events = events
        self.on_end = on_end
        self.headers.update({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGone):
                await race(self._send_all(send), receive)
        finally:
            self.on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
