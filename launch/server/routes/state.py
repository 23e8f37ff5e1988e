"""The routes GET /health, /ready, /status, /version and /metrics, for operators. They need no API key."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import lp
from launch.server import errors
from launch.server.context import Context, context
from launch.server.service_errors import EngineFailed, ShuttingDown

router = APIRouter()


@router.get("/health")
async def health(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Answers 200 unless the engine has failed."""
    if server.service.has_failed:
        raise EngineFailed
    return {"status": "ok"}


@router.get("/ready")
async def ready(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Answers 200 if the server takes and answers requests now."""
    if server.service.has_failed:
        raise EngineFailed
    if server.service.is_draining:
        raise ShuttingDown
    if not server.backend.is_serving:
        raise errors.starting(server.settings.retry_after_s)
    return {"status": "ready"}


@router.get("/status")
async def status(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Returns the epoch and the state of each rank; see `Backend.status`."""
    return server.backend.status()


@router.get("/version")
async def get_version() -> dict[str, Any]:
    """Returns the version of this project."""
    return {"version": lp.__version__}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: Annotated[Context, Depends(context)]) -> Response:
    """Returns all metrics in Prometheus' text format."""
    return Response(server.metrics.render(), media_type=CONTENT_TYPE_LATEST)
