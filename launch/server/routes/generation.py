"""The routes POST /v1/completions and POST /v1/chat/completions."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from launch.server import errors
from launch.server.bodies import body_of
from launch.server.connection import ClientGone, EventStream, note_gone, race
from launch.server.context import Context, authorise, context, has_place, owner
from launch.server.openai.conversion import Prepared
from launch.server.openai.protocol import ChatBody, CompletionBody
from launch.server.openai.replies import ChatReply, CompletionReply, Reply
from launch.server.openai.structured import grammar_of
from launch.server.service import Subscription
from launch.server.service_errors import ServiceError
from lp.request import Completion

router = APIRouter(dependencies=[Depends(authorise), Depends(has_place)])


@router.post("/v1/completions")
async def completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[CompletionBody, Depends(body_of(CompletionBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    await server.compile(grammar_of(body))
    prepared = await server.tokenizing(lambda: server.conversion.prepare(body, sharing), body.num_bytes)
    reply = CompletionReply(prepared, server.model_name, server.names, server.checkpoint)
    return await _answer(request, server, prepared, reply, bool(body.stream))


@router.post("/v1/chat/completions")
async def chat_completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[ChatBody, Depends(body_of(ChatBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    await server.compile(grammar_of(body))
    prepared = await server.tokenizing(lambda: server.conversion.prepare(body, sharing), body.num_bytes)
    reply = ChatReply(prepared, server.model_name, server.names)
    return await _answer(request, server, prepared, reply, bool(body.stream))


async def _answer(request: Request, server: Context, prepared: Prepared, reply: Reply, streams: bool) -> Response:
    subscription = server.service.submit(*prepared.requests)
    if streams:
        return EventStream(_events(subscription, reply, server.settings.retry_after_s), on_end=subscription.close)
    try:
        completions = await race(_collect(prepared, subscription), request.receive)
    except ClientGone:
        note_gone(request.scope)
        return Response(status_code=errors.CLIENT_CLOSED_REQUEST)
    finally:
        subscription.close()
    return JSONResponse(reply.whole(completions))


async def _collect(prepared: Prepared, subscription: Subscription) -> dict[str, Completion]:
    completions = {request.id: Completion() for request in prepared.requests}
    async for progress in subscription:
        completions[progress.request_id].extend(progress)
    return completions


async def _events(subscription: Subscription, reply: Reply, retry_after_s: int) -> AsyncIterator[str]:
    """Yields the data of each event, the first ones with the first token. An error after that is an event as well."""
    opening = reply.opening()
    try:
        async for progress in subscription:
            for chunk in itertools.chain(opening, reply.chunks(progress)):
                yield _json(chunk)
    except ServiceError as error:
        yield _json(errors.from_service(error, retry_after_s).body)
    yield "[DONE]"


def _json(chunk: dict[str, Any]) -> str:
    return json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
