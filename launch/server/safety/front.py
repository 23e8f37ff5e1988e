"""What every request passes before the routes: an id, the check of its Host, and HEAD answered as GET without the body.

A page that a browser has loaded from elsewhere can have its own name resolve to this machine (DNS rebinding). Its
requests then reach a server on a loopback address as if they came from the same origin, but they carry the page's name
as their Host. Such a server therefore answers only to the names of this machine.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Ids that are taken from clients: they are logged and sent back.
_REQUEST_ID = re.compile(r"[!-~]{1,128}")

ANY = "*"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AllowedHosts:
    """The names by which the server may be called. any: whether every name is allowed."""

    def __init__(self, address: str, more: Sequence[str]):
        """address: what the server listens on. more: names that are allowed besides; `*` is every name.

        On an address that is not loopback, all names are allowed unless some are given.
        """
        self.any = ANY in more or not (more or is_loopback(address))
        self._names = {*_LOCAL_NAMES, _name_of(address), *map(str.lower, more)}

    def allows(self, host: str) -> bool:
        """host: the value of the Host header; its port does not matter."""
        return self.any or without_port(host.strip().lower()) in self._names


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def without_port(host: str) -> str:
    """The name in a Host header. An IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (not name.count(":") or name.endswith("]")) else host


def _name_of(address: str) -> str:
    return f"[{address}]" if ":" in address else address.lower()


class Front:
    """hosts: the names the server may be called by; None where another program in front of it has that task.
    refusal: makes the response for a name that is not allowed.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts | None, refusal: Callable[[str], Response]):
        self.app = app
        self.hosts = None if hosts is None or hosts.any else hosts
        self.refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        is_head = scope["method"] == "HEAD"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", request_id.encode())]}
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        if self.hosts and not self.hosts.allows(host := headers.get("host", "")):
            await self.refusal(host)(scope, receive, send_on)
        else:
            await self.app({**scope, "method": "GET"} if is_head else scope, receive, send_on)
