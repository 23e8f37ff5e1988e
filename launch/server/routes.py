"""The routes that generate no text: models, tokens, the server's state, and what the page asks for under /lookahead."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field

import lp
from launch.backend import State
from launch.server import errors
from launch.server.bodies import Body, body_of
from launch.server.context import Context, authorise, context
from launch.server.errors import ApiError
from launch.server.openai_protocol import DetokenizeBody, TokenizeBody
from launch.server.service import EngineFailed, ShuttingDown
from lp.runner.step_times.measure import origin
from lp.trace import LEGEND

# Routes that ask for an API key, if the server has any, and routes that do not.
with_key = APIRouter(dependencies=[Depends(authorise)])
open_to_all = APIRouter()


@with_key.get("/v1/models")
async def models(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Lists the names of the model that is served, as OpenAI's and Anthropic's APIs do."""
    names = server.model_names
    ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": [_card(server, name) for name in names], **ends}


@with_key.get("/v1/models/{name:path}")
async def model(name: str, server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Describes the model that is served."""
    server.conversion.check_model(name)
    return _card(server, name)


def _card(server: Context, name: str) -> dict[str, Any]:
    """What OpenAI's and vLLM's clients ask for, and then what Anthropic's do."""
    length, started = server.checkpoint.max_length, datetime.fromtimestamp(server.started_at, UTC)
    return {
        "id": name,
        "object": "model",
        "created": server.started_at,
        "owned_by": "lookahead-parallel",
        "root": server.model_name,
        "parent": None,
        "max_model_len": length,
        "type": "model",
        "display_name": name,
        "created_at": started.isoformat().replace("+00:00", "Z"),
        "max_input_tokens": length,
        "max_tokens": length,
    }


@with_key.post("/tokenize")
async def tokenize(
    server: Annotated[Context, Depends(context)], body: Annotated[TokenizeBody, Depends(body_of(TokenizeBody))]
) -> dict[str, Any]:
    """Returns the token ids of a text, or of messages in the chat template."""
    server.conversion.check_model(body.model)
    tokens = await server.tokenizing(lambda: _tokens(server, body), body.num_bytes)
    answer = {"count": len(tokens), "max_model_len": server.checkpoint.max_length, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [server.names.name(token) for token in tokens]
    return answer


@with_key.post("/detokenize")
async def detokenize(
    server: Annotated[Context, Depends(context)], body: Annotated[DetokenizeBody, Depends(body_of(DetokenizeBody))]
) -> dict[str, Any]:
    """Returns the text of token ids."""
    server.conversion.check_model(body.model)
    vocab_size = server.checkpoint.vocab_size
    if any(not 0 <= token < vocab_size for token in body.tokens):
        raise errors.bad_request(f"tokens must be ids from 0 to {vocab_size - 1}", param="tokens")
    text = await server.tokenizing(lambda: server.checkpoint.tokenizer.decode(body.tokens), body.num_bytes)
    return {"prompt": text}


@with_key.get("/tokenizer_info")
async def tokenizer_info(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Describes the tokenizer, so that a client that has none can use this one: lm-eval does."""
    tokenizer = server.checkpoint.tokenizer
    known = {name: getattr(tokenizer, f"{name}_token") for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "model_max_length": server.checkpoint.max_length,
        "vocab_size": len(tokenizer),
        **{f"{name}_token": token for name, token in known.items()},
        "chat_template": tokenizer.chat_template,
    }


def _tokens(server: Context, body: TokenizeBody) -> list[int]:
    if body.messages:
        return server.conversion.chat_tokens(body.messages, body)
    with_special = body.add_special_tokens is not False
    return server.checkpoint.tokenizer.encode(body.prompt or "", add_special_tokens=with_special)


@open_to_all.get("/health")
async def health(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Answers 200 unless the engine has failed."""
    if server.service.has_failed:
        raise EngineFailed
    return {"status": "ok"}


@open_to_all.get("/ping", name="ping")
@open_to_all.post("/ping", name="ping_by_post")
async def ping(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """The same as /health, as SageMaker and vLLM call it."""
    return await health(server)


@open_to_all.get("/load")
async def load(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Returns how many requests run and wait, and their sum as `server_load`, as in vLLM."""
    running, waiting = server.service.num_running, server.service.num_waiting
    return {"server_load": running + waiting, "running": running, "waiting": waiting}


@open_to_all.post("/reset_prefix_cache", dependencies=[Depends(authorise)])
async def reset_prefix_cache(request: Request, server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Forgets the keys and values of finished requests, as in vLLM; texts stay the same."""
    _check_origin(request, server)
    server.service.reset_prefixes()
    return {"success": True}


@open_to_all.get("/ready")
async def ready(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Answers 200 if the server takes and answers requests now."""
    if server.service.has_failed:
        raise EngineFailed
    if server.service.is_draining:
        raise ShuttingDown
    if not server.backend.is_serving:
        raise errors.starting(server.settings.retry_after_s)
    return {"status": "ready"}


@open_to_all.get("/status")
async def status(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Returns the epoch and the state of each rank; see `Backend.status`."""
    return server.backend.status()


@open_to_all.get("/version")
async def get_version() -> dict[str, Any]:
    """Returns the version of this project."""
    return {"version": lp.__version__}


@open_to_all.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: Annotated[Context, Depends(context)]) -> Response:
    """Returns all metrics in Prometheus' text format."""
    return Response(server.metrics.render(), media_type=CONTENT_TYPE_LATEST)


MOST_TOKENS = 10_000
# What a watcher wants to know of a rank's state.
_SEEN = {State.serving: "serving", State.starting: "starting", State.loading: "starting", State.ready: "starting"}


class TokensBody(Body):
    """The body of POST /lookahead/tokens. ids: tokens whose texts are wanted."""

    ids: list[int] = Field(max_length=MOST_TOKENS)


@open_to_all.get("/lookahead/state")
async def get_state(server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Returns what the server runs: the model, the decoding methods, the legend of traces, the ranks and the curve.

    `methods` are those that a stream can have here: a method that needs a second model is there if one is loaded.
    `state` of a rank is starting, serving or lost. `curve` has pairs of rows on the rank with the most and milliseconds
    of a step, at the load that the machine had lately; null if it is not known. `curve_origin` says where it comes
    from.
    """
    status, times = server.backend.status(), server.backend.step_times
    curve = times and times.by_part()
    return {
        "model": server.model_name,
        "methods": sorted(server.backend.request_builder.find_streamed_methods()),
        "legend": LEGEND,
        "ranks": [{"rank": one["rank"], "state": _SEEN.get(one["state"], "lost")} for one in status["ranks"]],
        "epoch": status["epoch"],
        "curve": curve
        and times
        and [[rows, round(1000 * times.load * s, 3)] for rows, s in zip(curve.rows, curve.seconds, strict=True)],
        "curve_origin": times and origin(times),
        "may_trace": server.settings.trace,
        "may_kill": server.settings.page_kills_ranks and server.backend.outlives_ranks,
        "needs_key": bool(server.keys),
    }


@open_to_all.post("/lookahead/tokens", dependencies=[Depends(authorise)])
async def tokens(
    server: Annotated[Context, Depends(context)], body: Annotated[TokensBody, Depends(body_of(TokensBody))]
) -> dict[str, Any]:
    """Returns the text of each token by itself."""
    vocab_size = server.checkpoint.vocab_size
    if any(not 0 <= token < vocab_size for token in body.ids):
        raise errors.bad_request(f"ids must be tokens from 0 to {vocab_size - 1}", param="ids")
    return {"texts": await server.tokenizing(lambda: [server.names.name(token) for token in body.ids])}


@open_to_all.post("/lookahead/ranks/{rank}/kill", status_code=202, dependencies=[Depends(authorise)])
async def kill(rank: str, request: Request, server: Annotated[Context, Depends(context)]) -> dict[str, Any]:
    """Kills the process of a rank, which is started again; texts go on without it."""
    _check_origin(request, server)
    if not server.settings.page_kills_ranks:
        raise errors.not_allowed("clients may not kill ranks here (server.page_kills_ranks=true lets them)")
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
