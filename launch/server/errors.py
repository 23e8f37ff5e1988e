"""Gives every error the body of OpenAI's API: {"error": {"message", "type", "param", "code"}}, or of Anthropic's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from launch.server.access import without_port
from launch.server.service import QueueFull, RanksLost, ServiceError, ShuttingDown, TooLarge, Unsupported

LONGEST_MESSAGE = 400
CLIENT_CLOSED_REQUEST = 499


class ApiError(Exception):
    """A request is answered with an error; the message is for the person who sent it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        message = " ".join(message[:LONGEST_MESSAGE].split())  # it may quote a long request of many lines
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def renamed(self, own: dict[str, str]) -> ApiError:
        """The error for an API that has names of its own for fields. own: these, by the names in a chat."""
        error = self.body["error"]
        name = error["param"] or error["message"].partition("=")[0]
        if name in own:
            error |= {"param": own[name], "message": error["message"].replace(name, own[name], 1)}
        return self

    @property
    def reason(self) -> str:
        """Why the request was refused, in a word for metrics."""
        error = self.body["error"]
        return error["code"] or error["type"]

    def response(self, path: str = "") -> Response:
        """The response that a client of the API expects whose route, `path`, it has asked."""
        body = self.body
        if path.startswith("/v1/messages"):
            body = error_body(self.status, body["error"]["message"])
        return JSONResponse(body, self.status, self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unknown_model(name: str, served: Sequence[str]) -> ApiError:
    known = ", ".join(map(repr, served))
    message = f"the model {name[:100]!r} does not exist; this server has {known} (server.model_names adds names)"
    return ApiError(404, message, param="model", code="model_not_found")


def body_too_large(limit: int) -> ApiError:
    message = f"the request body is larger than the limit of {limit} bytes (server.max_body_bytes)"
    return ApiError(413, message, code="body_too_large")


def body_too_slow(limit_s: float) -> ApiError:
    message = f"the request body did not arrive within {limit_s:g} seconds (server.body_timeout_s)"
    return ApiError(408, message, code="body_too_slow", headers={"Connection": "close"})


def client_gone() -> ApiError:
    """The end of a request whose client has left before it was read; nobody receives it, but it is counted."""
    return ApiError(CLIENT_CLOSED_REQUEST, "the client has gone away", code="client_gone")


def unknown_encoding(name: str) -> ApiError:
    message = f"the Content-Encoding {name[:100]!r} is not known here; send gzip, deflate or none"
    return ApiError(415, message, code="unsupported_encoding")


def not_json(media_type: str) -> ApiError:
    message = f"the Content-Type must be application/json, not {media_type[:100]!r}"
    return ApiError(415, message, code="unsupported_media_type")


def unknown_host(host: str) -> ApiError:
    name = without_port(host)[:100] or "NAME"
    message = (
        f"this server may not be called {host[:100]!r}; its operator can allow the name (server.allowed_hosts=[{name}])"
    )
    return ApiError(403, message, code="host_not_allowed")


def not_allowed(message: str) -> ApiError:
    return ApiError(403, message, kind="permission_error", code="not_allowed")


def not_authorised() -> ApiError:
    message = "the API key is missing or wrong; send one as the header 'Authorization: Bearer KEY'"
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def internal() -> ApiError:
    return ApiError(500, "the server met an internal error", kind="server_error", code="internal_error")


def starting(retry_after_s: int) -> ApiError:
    """The error of /ready while ranks are being started. Requests wait for them."""
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(503, "the ranks are starting", kind="server_error", code="starting", headers=headers)


def from_service(error: ServiceError, retry_after_s: int) -> ApiError:
    """Converts an error of the service to the error that the client receives."""
    retry = {"Retry-After": str(retry_after_s)}
    match error:
        case TooLarge():
            return bad_request(str(error), code="context_length_exceeded")
        case Unsupported():
            return bad_request(str(error))
        case QueueFull():
            return ApiError(429, str(error), kind="rate_limit_error", code="rate_limit_exceeded", headers=retry)
        case ShuttingDown():
            return ApiError(503, str(error), kind="server_error", code="shutting_down", headers=retry)
        case RanksLost():
            return ApiError(503, str(error), kind="server_error", code="ranks_lost", headers=retry)
        case _:
            return ApiError(500, str(error), kind="server_error", code="internal_error")


def install(app: FastAPI, retry_after_s: Callable[[], int], count: Callable[[str], None]) -> None:
    """Makes the app answer every error with the body of an API: Anthropic's on its routes, OpenAI's on all others.

    retry_after_s: the seconds that a refused client is told to wait. count: called with the reason of each refusal.
    """

    def answer(error: ApiError, request: Request) -> Response:
        count(error.reason)
        return error.response(request.url.path)

    async def on_api_error(request: Request, error: ApiError) -> Response:
        return answer(error, request)

    async def on_service_error(request: Request, error: ServiceError) -> Response:
        return answer(from_service(error, retry_after_s()), request)

    async def on_http_error(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        message = {404: f"there is no {where}", 405: f"{where} is not allowed"}.get(error.status_code, error.detail)
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        found = ApiError(error.status_code, message, code=code, headers=dict(error.headers or {}))
        return answer(found, request)

    async def on_bug(request: Request, error: Exception) -> Response:
        return answer(internal(), request)

    app.add_exception_handler(ApiError, on_api_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(ServiceError, on_service_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(HTTPException, on_http_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(Exception, on_bug)


# The types of errors by their status; others are those of their hundred.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
