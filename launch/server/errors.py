"""Gives every error the body of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from launch.server.service import QueueFull, RanksLost, ServiceError, ShuttingDown, TooLarge

LONGEST_MESSAGE = 400


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

    def response(self) -> Response:
        return JSONResponse(self.body, self.status, self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unknown_model(name: str, served: str) -> ApiError:
    message = f"the model {name!r} does not exist; this server has {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def body_too_large(limit: int) -> ApiError:
    message = f"the request body is larger than the limit of {limit} bytes (server.max_body_bytes)"
    return ApiError(413, message, code="body_too_large")


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
        case QueueFull():
            return ApiError(429, str(error), kind="rate_limit_error", code="rate_limit_exceeded", headers=retry)
        case ShuttingDown():
            return ApiError(503, str(error), kind="server_error", code="shutting_down", headers=retry)
        case RanksLost():
            return ApiError(503, str(error), kind="server_error", code="ranks_lost", headers=retry)
        case _:
            return ApiError(500, str(error), kind="server_error", code="internal_error")


def install(app: FastAPI, retry_after_s: int) -> None:
    """Makes the app answer every error with OpenAI's body."""

    async def on_api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    async def on_service_error(request: Request, error: ServiceError) -> Response:
        return from_service(error, retry_after_s).response()

    async def on_http_error(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        message = {404: f"there is no {where}", 405: f"{where} is not allowed"}.get(error.status_code, error.detail)
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})).response()

    async def on_bug(request: Request, error: Exception) -> Response:
        return internal().response()

    app.add_exception_handler(ApiError, on_api_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(ServiceError, on_service_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(HTTPException, on_http_error)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(Exception, on_bug)
