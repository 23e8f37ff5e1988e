"""Connections of clients: their limits, events sent to them, and clients that leave.

Work for a client ends when the client leaves. Without the limits, a client that sends a byte now and then holds a
connection for ever, and many such clients hold all of the process's files (slow loris)."""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

log = logging.getLogger("lookahead")

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed its connection."""


def note_gone(scope: Scope) -> None:
    """Logs in one line that the client of a request has gone away."""
    request_id = scope.get("state", {}).get("request_id", "without an id")
    log.info("%s %s: the client has gone away (request %s)", scope["method"], scope["path"], request_id)


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
    """A response of server-sent events, each sent at once. events: as they are sent, with their empty line.

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
            await race(self._send_all(send), receive)
        except ClientGone:
            note_gone(scope)
        finally:
            self.on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# One of two classes that uvicorn chooses between by what is installed.
_BASE: Any = AutoHTTPProtocol

LARGEST_HEAD = 64 * 1024

_TOO_MANY = b"503 Service Unavailable", b"too many connections", b"retry-after: 1\r\n"
_TOO_SLOW = b"408 Request Timeout", b"the head of the request took too long", b""
_TOO_LARGE = b"431 Request Header Fields Too Large", b"the head of the request is too large", b""


class Limited(_BASE):
    """A connection with limits; `limited` makes the class that has them.

    head_timeout_s, max_connections: see there. `_begun`: the request whose head came last; `_num_bytes`: size of an
    unfinished head so far.
    """

    head_timeout_s: float
    max_connections: int
    _timer: TimerHandle | None = None
    _begun: Any = None
    _num_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(*_TOO_MANY)
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not self._begun:
            self._begun, self._num_bytes = self.cycle, 0
            self._stop_timer()
        elif self._begun is None or self._begun.response_complete:
            self._start_timer()
            self._num_bytes += len(data)
            if self._num_bytes > LARGEST_HEAD and not self.transport.is_closing():
                self._refuse(*_TOO_LARGE)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._refuse_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_slow(self) -> None:
        if self._num_bytes:
            self._refuse(*_TOO_SLOW)
        else:
            self.transport.close()  # nothing was asked, so nothing is answered

    def _refuse(self, status: bytes, message: bytes, header: bytes) -> None:
        if not self.transport.is_closing():
            body = b'{"error":{"message":"%b","type":"server_error","param":null,"code":null}}' % message
            head = b"HTTP/1.1 %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (
                status, header, len(body),
            )  # fmt: skip
            self.transport.write(head + b"connection: close\r\n\r\n" + body)
            self.transport.close()


def limited(head_timeout_s: float, max_connections: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits.

    head_timeout_s: seconds from the connection, or from the first byte of a later request, to the end of the request's
    head. max_connections: open connections beyond which a new one is refused.
    """
    return type("Limited", (Limited,), {"head_timeout_s": head_timeout_s, "max_connections": max_connections})
