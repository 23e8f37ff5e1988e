"""Who may use the server: API keys, the names it is called by, and the certificate of HTTPS.

Knows nothing of bodies, routes and the engine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Keys, separated by commas or white space.
VARIABLE = "LOOKAHEAD_API_KEYS"


class Keys:
    """Keys that clients may send.

    Only digests are kept. All of them are compared, so the time of an answer tells nothing of a key.
    """

    def __init__(self, keys: Iterable[str]):
        self._digests = [_digest(key) for key in keys]

    def owner_of(self, headers: Mapping[str, str]) -> str | None:
        """A short digest of the key in a request's headers; None if it has no valid key.

        headers: `Authorization: Bearer KEY`, or `X-Api-Key: KEY` as Anthropic's clients send it.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return given.hex()[:16] if any(matches) else None


def read_keys(keys: Iterable[str], file: str | None) -> Keys | None:
    """The keys of the settings, of a file with one key a line (`#` begins a comment), and of LOOKAHEAD_API_KEYS.

    None if there are none: the server is open to all. Raises ValueError for a file that cannot be read or has no key,
    for an empty key and for one that is not ASCII.
    """
    listed = [("server.api_keys", key) for key in keys]
    if file is not None:
        listed += [(file, key) for key in _read(file)]
    listed += [(VARIABLE, key) for key in os.environ.get(VARIABLE, "").replace(",", " ").split()]
    for place, key in listed:
        if not key or not key.isascii() or not key.isprintable():
            raise ValueError(f"{place} holds an empty key or one that is not printable ASCII")
    return Keys(key for _, key in listed) if listed else None


def _read(file: str) -> list[str]:
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"server.api_keys_file={file} cannot be read: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        raise ValueError(f"server.api_keys_file={file} holds no key; write one a line")
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_certificate(certificate: str | None, key: str | None) -> None:
    """certificate, key: PEM files, or None for plain HTTP. Raises ValueError for files that do not serve."""
    if certificate is None or key is None:
        return
    for name, file in (("tls_certificate", certificate), ("tls_key", key)):
        if not Path(file).is_file():
            raise ValueError(f"server.{name}={file} is not a file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ValueError(
            f"server.tls_certificate={certificate} and server.tls_key={key} cannot be used together: {reason}"
        ) from None


# Ids that are taken from clients: they are logged and sent back.
_REQUEST_ID = re.compile(r"[!-~]{1,128}")

ANY = "*"
# Names of this machine: the second one is what Docker's containers call it. No website can have one of them.
_LOCAL_NAMES = ("localhost", "host.docker.internal", "127.0.0.1", "[::1]")
# What tells nothing of texts, and is asked for by monitors: by the name of a container, or by none.
_WATCHED = ("/health", "/ready", "/ping", "/load", "/metrics")
_CONTAINER = re.compile(r"[a-z0-9_-]*")


class AllowedHosts:
    """The names by which the server may be called. any: whether every name is allowed."""

    def __init__(self, address: str, more: Sequence[str]):
        """address: what the server listens on. more: names that are allowed besides; `*` is every name.

        On an address that is not loopback, all names are allowed unless some are given.
        """
        self.any = ANY in more or not (more or is_loopback(address))
        self._names = {*_LOCAL_NAMES, _name_of(address), *map(str.lower, more)}

    def allows(self, host: str, path: str = "") -> bool:
        """host: the value of the Host header, empty if there is none; its port does not matter. path: of the route."""
        name = without_port(host.strip().lower())
        return self.any or name in self._names or (path in _WATCHED and bool(_CONTAINER.fullmatch(name)))


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
    """What every request passes: ids, names of the server, HEAD as GET, and paths that end with a slash.

    hosts: the names the server may be called by; None where another program in front of it has that task.
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
                more = [(b"x-request-id", request_id.encode())]
                if warning := scope["state"].get("warning"):
                    more.append((b"warning", f'299 - "{warning.replace(chr(34), chr(39))}"'.encode()))
                message = {**message, "headers": [*message.get("headers", []), *more]}
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        path = scope["path"].rstrip("/") or "/"
        if self.hosts and not self.hosts.allows(host := headers.get("host", ""), path):
            await self.refusal(host)(scope, receive, send_on)
        else:
            method = "GET" if is_head else scope["method"]
            await self.app({**scope, "method": method, "path": path}, receive, send_on)
