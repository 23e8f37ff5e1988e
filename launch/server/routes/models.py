"""The routes under GET /v1/models, which describe the one model of the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from launch.server.context import Context, authorise, context

router = APIRouter(dependencies=[Depends(authorise)])


@router.get("/v1/models")
async def models(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Lists the model that is served."""
    return {"object": "list", "data": [_card(server)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Describes the model that is served."""
    server.conversion.check_model(name)
    return _card(server)


def _card(server: Context) -> dict[str, Any]:
    return {
        "id": server.model_name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "lookahead-parallel",
        "max_model_len": server.checkpoint.max_length,
    }
