"""Builds the ASGI application: its routes, their OpenAPI document, error bodies and what all requests pass.

The bodies of requests are read by launch/server/bodies.py and not by FastAPI, so their schemas are added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from launch.server import embeddings, errors, generation, page_files, routes
from launch.server.access import AllowedHosts, Front
from launch.server.bodies import Body
from launch.server.context import Context

# Seconds for which a browser need not ask again whether it may send a request.
PREFLIGHT_S = 3600
ROUTERS = [generation.router, embeddings.router, routes.with_key, routes.open_to_all, page_files.documentation]
EXPOSED_HEADERS = ("retry-after", "x-request-id", "warning")

SCHEMAS = "#/components/schemas/"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],  # Anthropic's have no others
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_TEXT, _TOKENS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
_PROMPTS = [_TEXT, _TOKENS, {"type": "array", "items": _TEXT}, {"type": "array", "items": _TOKENS}]
_PART = {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": _TEXT}}
# Fields that are converted from several shapes to one, of which pydantic describes the one, or nothing.
_SHAPES = {
    "input": _PROMPTS,
    "prompt": _PROMPTS,
    "stop": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}, {"type": "null"}],
    "content": [_TEXT, {"type": "array", "items": _PART}, {"type": "null"}],
}
_KEY = {"key": {"type": "http", "scheme": "bearer"}}


def make_app(server: Context, hosts: AllowedHosts | None = None) -> ASGIApp:
    """hosts: the names that the server may be called by; None does not check them, as behind a proxy."""
    app = FastAPI(title="lookahead-parallel", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = server
    errors.install(app, server.service.retry_after_s, server.metrics.count_refused)
    for router in ROUTERS:
        app.include_router(router)
    if server.settings.page:
        app.include_router(page_files.page)
    describe(app, ROUTERS, needs_key=bool(server.keys))
    return Front(_for_browsers(app, server.settings.allowed_origins), hosts, server.refuse_host)


def _for_browsers(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Lets pages of these origins use the server."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
        max_age=PREFLIGHT_S,
    )


def describe(app: FastAPI, routers: Iterable[APIRouter], needs_key: bool) -> None:
    """Makes the app describe the bodies that it takes.

    routers: those that the app includes. needs_key: whether routes under /v1 and those of tokens ask for a key.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, routers, needs_key)
        return app.openapi_schema

    app.openapi = openapi  # pyright: ignore[reportAttributeAccessIssue]


def _document(app: FastAPI, routers: Iterable[APIRouter], needs_key: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    if needs_key:
        document["components"]["securitySchemes"] = _KEY
        document["security"] = [{"key": []}]
    for route in routes_of(routers):
        for method in route.methods or ():
            _complete(document["paths"][route.path_format][method.lower()], body_kind(route), schemas)
    return document


def routes_of(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    """The routes that are described."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                yield route


def body_kind(route: APIRoute) -> type[Body] | None:
    """The kind of body that a route reads; None if it reads none."""

    def kinds(dependant: Dependant) -> Iterator[type[Body]]:
        for dependency in dependant.dependencies:
            if kind := getattr(dependency.call, "kind", None):
                yield kind
            yield from kinds(dependency)

    return next(kinds(route.dependant), None)


def _complete(operation: dict[str, Any], kind: type[Body] | None, schemas: dict[str, Any]) -> None:
    """Adds the body and the errors to an operation."""
    responses = operation["responses"]
    responses.pop("422", None)
    errors = {"application/json": {"schema": {"$ref": f"{SCHEMAS}Error"}}}
    responses["4XX"] = {"description": "The request is refused", "content": errors}
    responses["5XX"] = {"description": "The server cannot answer now", "content": errors}
    if kind is None:
        return
    schema = kind.model_json_schema(ref_template=f"{SCHEMAS}{{model}}")
    schemas.update(schema.pop("$defs", {}))
    schemas[kind.__name__] = schema
    for described in schemas.values():
        _describe_shapes(described.get("properties", {}))
    reference = {"schema": {"$ref": f"{SCHEMAS}{kind.__name__}"}}
    operation["requestBody"] = {"required": True, "content": {"application/json": reference}}
    if "stream" in kind.model_fields:
        responses["200"]["content"] = {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {}},  # an event is a string to some readers, an object to others
        }


def _describe_shapes(properties: dict[str, Any]) -> None:
    """Describes the fields that take several shapes, unless their schema does so itself."""
    for name, field in properties.items():
        if name in _SHAPES and "anyOf" not in field:
            field.pop("type", None)
            field.pop("items", None)
            field["anyOf"] = _SHAPES[name]
