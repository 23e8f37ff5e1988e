"""Gives errors the body of Anthropic's API: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from typing import Any

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
