"""Builds the FastAPI application: its routes and error bodies. Knows nothing of sockets and signals."""

from __future__ import annotations

from fastapi import FastAPI

from launch.server import errors
from launch.server.context import Context
from launch.server.routes import generation, models, state, tokenizing


def make_app(server: Context) -> FastAPI:
    app = FastAPI(title="lookahead-parallel", openapi_url=None, redirect_slashes=False)
    app.state.server = server
    errors.install(app, server.settings.retry_after_s)
    for routes in (generation, models, tokenizing, state):
        app.include_router(routes.router)
    return app
