"""Reads the body of a request: limited in size, checked, and refused with one readable message."""

from __future__ import annotations

import asyncio
import logging
import re
import reprlib
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from launch.server import errors
from launch.server.connection import note_gone
from launch.server.errors import ApiError
from launch.server.foreign_fields import OTHER_NAMES, remedy, warning
from launch.server.settings import UnknownFields

# A body that is too large is read to its end, up to this many times the limit, so that the client sees the answer.
_DISCARDED_SHARE = 16
# Seconds after which the server stops reading a body that is too large.
_DISCARD_S = 10.0


log = logging.getLogger("lookahead")

# Of fields whose being ignored has been logged.
MOST_LOGGED = 1000


def _names(field: str) -> AliasChoices | None:
    others = OTHER_NAMES.get(field)
    return AliasChoices(field, *others) if others else None


class Body(BaseModel):
    """A request's body. Values are not converted to other types. What is done with unknown fields is a setting."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        allow_inf_nan=False,
        alias_generator=AliasGenerator(validation_alias=_names),  # pyright: ignore[reportArgumentType]
    )

    _num_bytes: int = PrivateAttr(0)

    @property
    def num_bytes(self) -> int:
        """The size of the body as it was sent."""
        return self._num_bytes

    @property
    def unknown(self) -> list[str]:
        """The names of fields that this server does not know, but for those that are null or false."""
        return [name for name, value in (self.model_extra or {}).items() if value is not None and value is not False]


class Part(BaseModel):
    """An object inside a body, such as a message. Unknown fields are ignored, as clients add their own notes to it."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


def is_off(value: Any) -> bool:
    """Whether a field with this value is as good as left out."""
    return value is None or value is False or value in ("", [], {})


Kind = TypeVar("Kind", bound=Body)


def refused(message: str, **values: Any) -> PydanticCustomError:
    return PydanticCustomError("refused", message, values)  # pyright: ignore[reportArgumentType]


def body_of(kind: type[Kind]) -> Callable[[Request], Awaitable[Kind]]:
    """Returns a FastAPI dependency that reads the body as `kind`."""

    async def read(request: Request) -> Kind:
        _check_media_type(request)
        settings = request.app.state.server.settings
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                data = await _read(request, settings.max_body_bytes)
        except TimeoutError:
            raise errors.body_too_slow(settings.body_timeout_s) from None
        except ClientDisconnect:
            note_gone(request.scope)
            raise errors.client_gone() from None
        data = _unpacked(data, request.headers.get("content-encoding", ""), settings.max_body_bytes)
        try:
            data.decode()
        except UnicodeDecodeError as error:
            message = f"the body is not valid UTF-8 (at byte {error.start})"
            raise errors.bad_request(message, code="invalid_utf8") from None
        try:
            body = kind.model_validate_json(data)
        except ValidationError as error:
            raise readable(error, kind) from None
        body._num_bytes = len(data)
        if body.unknown:
            _take_unknown(body, request)
        return body

    read.kind = kind  # pyright: ignore[reportFunctionMemberAccess] - for the description of the routes
    return read


def _take_unknown(body: Body, request: Request) -> None:
    """Refuses the body's unknown fields, or lets the answer and the log say that they are ignored."""
    server, known = request.app.state.server, type(body).model_fields
    if server.settings.unknown_fields == UnknownFields.refuse:
        name = body.unknown[0]
        message = f"{name} is not a field that this server knows; leave it out{remedy(name, known)}"
        raise errors.bad_request(message, param=name[:100])
    request.state.warning = warning(body.unknown, known)
    new = [name for name in body.unknown if name not in server.logged_fields]
    if new and len(server.logged_fields) < MOST_LOGGED:
        server.logged_fields.update(new)
        log.warning("warning: %s; server.unknown_fields=refuse refuses them", warning(new, known))


def _check_media_type(request: Request) -> None:
    """Refuses what is not JSON: a page of another origin may send other media types without asking first."""
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise errors.not_json(given)


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


def _unpacked(data: bytes, encodings: str, limit: int) -> bytes:
    """The body without the encodings that its header names, the last of which was applied last."""
    for name in reversed([name.strip().lower() for name in encodings.split(",") if name.strip()]):
        if name == "identity":
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise errors.unknown_encoding(name)
        parts, left = [b""], limit
        try:
            while data:  # a gzip file may have several members
                unpacker = zlib.decompressobj(wbits=47)  # the formats of gzip and of zlib
                parts.append(unpacker.decompress(data, left + 1))
                left -= len(parts[-1])
                if left < 0:
                    raise errors.body_too_large(limit)
                if not unpacker.eof:
                    raise zlib.error("it is cut short")
                data = unpacker.unused_data
        except zlib.error as error:
            raise errors.bad_request(f"the body is not valid {name}: {error}", code="invalid_encoding") from None
        data = b"".join(parts)
    return data


async def _discard(stream: Any, most_bytes: int) -> None:
    try:
        async with asyncio.timeout(_DISCARD_S):
            async for part in stream:
                most_bytes -= len(part)
                if most_bytes < 0:
                    return
    except TimeoutError:
        return


def readable(error: ValidationError | PydanticCustomError, kind: type[Body]) -> ApiError:
    """Describes the first fault in one sentence that names the field."""
    if isinstance(error, PydanticCustomError):  # raised outside of the body's own checks
        return errors.bad_request(error.message(), param=named_field(error.message(), kind))
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
        case "too_short" if not fault["input"]:
            message = f"{place} is empty"
        case "refused":
            message = fault["msg"]
            place = place or str(fault.get("ctx", {}).get("field", ""))
        case _:
            message = f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}, not {reprlib.repr(fault['input'])}"
    return errors.bad_request(message, param=place[:100] or named_field(message, kind))


def named_field(message: str, kind: type[Body]) -> str | None:
    """Returns the first field of the body that a message names."""
    return next((word for word in re.findall(r"\w+", message) if word in kind.model_fields), None)
