"""The routes under /lookahead, for those who watch lookahead decoding at work: the page, above all.

GET /lookahead/state needs no API key, as it says whether one is needed; it tells what /status and /metrics tell.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from launch.backend import State
from launch.server import errors
from launch.server.bodies import Body, body_of
from launch.server.context import Context, authorise, context
from launch.server.errors import ApiError
from lp.trace.step import LEGEND

router = APIRouter()

MOST_TOKENS = 10_000
# What a watcher wants to know of a rank's state.
_SEEN = {State.serving: "serving", State.starting: "starting", State.loading: "starting", State.ready: "starting"}


class TokensBody(Body):
    """The body of POST /lookahead/tokens. ids: tokens whose texts are wanted."""

    ids: list[int] = Field(max_length=MOST_TOKENS)


@router.get("/lookahead/state")
async def get_state(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Returns what the server runs: the model, the decoding methods, the legend of traces, the ranks and the curve.

    `methods` are those that a stream can have here: a method that needs a second model is there if one is loaded.
    `state` of a rank is starting, serving or lost. `curve` has pairs of rows on the rank with the most and milliseconds
    of a step; null if it is not known.
    """
    status, times = server.backend.status(), server.backend.step_times
    curve = times and times.by_part()
    return {
        "model": server.model_name,
        "methods": sorted(server.backend.request_builder.streamed_methods()),
        "legend": LEGEND,
        "ranks": [{"rank": one["rank"], "state": _SEEN.get(one["state"], "lost")} for one in status["ranks"]],
        "epoch": status["epoch"],
        "curve": curve and [[rows, round(1000 * s, 3)] for rows, s in zip(curve.rows, curve.seconds, strict=True)],
        "may_trace": server.settings.trace,
        "may_kill": server.settings.page_kills_ranks and server.backend.outlives_ranks,
        "needs_key": bool(server.keys),
    }


@router.post("/lookahead/tokens", dependencies=[Depends(authorise)])
async def tokens(
    server: Annotated[Context, Depends(context)], body: Annotated[TokensBody, Depends(body_of(TokensBody))]
) -> dict[str, Any]:
    """Returns the text of each token by itself."""
    vocab_size = server.checkpoint.vocab_size
    if any(not 0 <= token < vocab_size for token in body.ids):
        raise errors.bad_request(f"ids must be tokens from 0 to {vocab_size - 1}", param="ids")
    return {"texts": await server.tokenizing(lambda: [server.names.name(token) for token in body.ids])}


@router.post("/lookahead/ranks/{rank}/kill", status_code=202, dependencies=[Depends(authorise)])
async def kill(rank: str, request: Request, server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Kills the process of a rank, which is started again; texts go on without it."""
    _check_origin(request, server)
    if not server.settings.page_kills_ranks:
        raise errors.not_allowed("clients may not kill ranks here; its operator can allow it (page_kills_ranks=true)")
    if not server.backend.outlives_ranks:
        raise errors.not_allowed(
            "without one of its ranks this server would lose its texts; start it with launcher=local, parallel.ranks=2 "
            "or more, and a parallel.mode that gives every rank the whole model"
        )
    numbers = {str(one["rank"]): one["rank"] for one in server.backend.status()["ranks"]}
    if rank not in numbers:
        known = ", ".join(numbers)
        raise ApiError(404, f"there is no rank {rank[:20]!r}; the ranks are {known}", code="rank_not_found")
    if why := server.backend.kill(numbers[rank]):
        raise ApiError(409, why, code="rank_is_needed")
    return {"rank": numbers[rank]}


def _check_origin(request: Request, server: Context) -> None:
    """Refuses the pages of other origins: a browser sends a request without a body for them without asking first."""
    origin = request.headers.get("origin")
    allowed = server.settings.allowed_origins
    if origin is None or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise errors.not_allowed(f"pages of {origin[:100]} may not do this; see server.allowed_origins")
