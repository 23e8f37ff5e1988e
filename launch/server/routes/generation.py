"""The routes POST /v1/completions and POST /v1/chat/completions, and how all routes that generate text answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from launch.server import errors
from launch.server.bodies import body_of
from launch.server.connection import ClientGone, EventStream, note_gone, race
from launch.server.context import Context, authorise, context, has_place, owner
from launch.server.errors import ApiError
from launch.server.openai.conversion import Prepared
from launch.server.openai.protocol import ChatBody, CompletionBody
from launch.server.openai.replies import ChatReply, CompletionReply
from launch.server.service import Subscription
from launch.server.service_errors import ServiceError
from lp.request import Completion, Output

router = APIRouter(dependencies=[Depends(authorise), Depends(has_place)])


class Writer(Protocol):
    """Writes the reply to one body in the format of one API. Chunks are made in the order of the stream.

    names_events: whether each event of a stream has the name that its chunk has under `type`; otherwise [DONE] ends it.
    """

    names_events: bool

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        """The reply to finished requests. completions: by the requests' ids."""
        ...

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yields the chunks before the first token."""
        ...

    def chunks(self, progress: Output) -> Iterator[dict[str, Any]]:
        """Yields the chunks for what a step added to one of the requests."""
        ...

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yields the chunks of an error after the stream has begun."""
        ...


@router.post("/v1/completions")
async def completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[CompletionBody, Depends(body_of(CompletionBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Continues prompts: OpenAI's completions, streamed or whole."""
    prepared = await prepare(server, body, sharing)
    reply = CompletionReply(prepared, server.model_name, server.names, server.checkpoint)
    return await answer(request, server, prepared, reply, bool(body.stream))


@router.post("/v1/chat/completions")
async def chat_completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[ChatBody, Depends(body_of(ChatBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Answers a conversation: OpenAI's chat completions, with tools, streamed or whole."""
    prepared = await prepare(server, body, sharing)
    reply = ChatReply(prepared, server.model_name, server.names)
    return await answer(request, server, prepared, reply, bool(body.stream))


async def prepare(server: Context, body: CompletionBody | ChatBody, sharing: str | None) -> Prepared:
    """The requests of a body. Its grammar is compiled and its prompts are tokenized apart from the event loop."""
    if body.lookahead_trace and not server.settings.trace:
        raise errors.not_allowed("lookahead_trace is not allowed here; its operator can allow it (server.trace=true)")
    grammar = server.conversion.grammar_of(body)
    await server.compile(grammar)
    return await server.tokenizing(lambda: server.conversion.prepare(body, sharing, grammar), body.num_bytes)


async def answer(request: Request, server: Context, prepared: Prepared, writer: Writer, streams: bool) -> Response:
    """Generates what a body asks for, and answers with it in the writer's format."""
    subscription = server.service.submit(*prepared.requests)
    if streams:
        return EventStream(_events(subscription, writer, server.settings.retry_after_s), on_end=subscription.close)
    try:
        completions = await race(_collect(prepared, subscription), request.receive)
    except ClientGone:
        note_gone(request.scope)
        return Response(status_code=errors.CLIENT_CLOSED_REQUEST)
    finally:
        subscription.close()
    return JSONResponse(writer.whole(completions))


async def _collect(prepared: Prepared, subscription: Subscription) -> dict[str, Completion]:
    completions = {request.id: Completion() for request in prepared.requests}
    async for progress in subscription:
        completions[progress.request_id].extend(progress)
    return completions


async def _events(subscription: Subscription, writer: Writer, retry_after_s: int) -> AsyncIterator[str]:
    """Yields the events as they are sent, the first ones with the first token. A later error is an event as well."""
    opening = writer.opening()
    try:
        async for progress in subscription:
            for chunk in itertools.chain(opening, writer.chunks(progress)):
                yield _event(chunk, writer)
    except ServiceError as error:
        for chunk in writer.failure(errors.from_service(error, retry_after_s)):
            yield _event(chunk, writer)
    if not writer.names_events:
        yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Any], writer: Writer) -> str:
    data = json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    name = f"event: {chunk['type']}\n" if writer.names_events else ""
    return f"{name}data: {data}\n\n"
