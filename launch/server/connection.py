"""What a client does over its connection: it receives events, and may go away at any time.

Work for a client ends when the client leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
