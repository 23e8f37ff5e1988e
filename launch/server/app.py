"""Builds the ASGI application: its routes, error bodies and what all requests pass. Knows nothing of sockets."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from launch.server import errors
from launch.server.context import Context
from launch.server.description import describe
from launch.server.routes import (
    documentation,
    generation,
    lookahead,
    messages,
    models,
    page,
    responses,
    state,
    tokenizing,
)
from launch.server.safety.front import AllowedHosts, Front

# Seconds for which a browser need not ask again whether it may send a request.
PREFLIGHT_S = 3600
MODULES = (generation, responses, messages, models, tokenizing, state, lookahead, documentation)
ROUTERS = [module.router for module in MODULES]
EXPOSED_HEADERS = ("retry-after", "x-request-id")


def make_app(server: Context, hosts: AllowedHosts | None = None) -> ASGIApp:
    """hosts: the names that the server may be called by; None does not check them, as behind a proxy."""
    app = FastAPI(title="lookahead-parallel", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = server
    errors.install(app, server.service.retry_after_s, server.metrics.count_refused)
    for router in ROUTERS:
        app.include_router(router)
    if server.settings.page:
        app.include_router(page.router)
    describe(app, ROUTERS, needs_key=bool(server.keys))
    return Front(_for_browsers(app, server.settings.allowed_origins), hosts, server.refuse_host)


def _for_browsers(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Lets pages of these origins use the server."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
        max_age=PREFLIGHT_S,
    )
