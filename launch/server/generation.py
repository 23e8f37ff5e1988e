"""The routes that generate text: completions, chats, responses and Anthropic's messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from launch.server import anthropic, errors, responses
from launch.server.anthropic import CountBody, MessageReply, MessagesBody
from launch.server.bodies import body_of, readable
from launch.server.connection import ClientGone, EventStream, note_gone, race
from launch.server.context import Context, authorise, context, has_place, owner
from launch.server.conversion import Prepared
from launch.server.errors import ApiError
from launch.server.openai_protocol import ChatBody, CompletionBody
from launch.server.openai_replies import ChatReply, CompletionReply
from launch.server.responses import ResponseReply, ResponsesBody, Stored
from launch.server.service import ServiceError, Subscription
from lp.request import Completion, Output

T = TypeVar("T")
HAS_PLACE = [Depends(has_place)]
router = APIRouter(dependencies=[Depends(authorise)])
# Fields of /v1/responses by their names in a chat.
OWN_NAMES = {"response_format": "text.format", "max_tokens": "max_output_tokens", "messages": "input"}


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

    def chunks(self, output: Output) -> Iterator[dict[str, Any]]:
        """Yields the chunks for what a step added to one of the requests."""
        ...

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yields the chunks of an error after the stream has begun."""
        ...


@router.post("/v1/completions", dependencies=HAS_PLACE)
async def completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[CompletionBody, Depends(body_of(CompletionBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Continues prompts: OpenAI's completions, streamed or whole."""
    prepared = await prepare(server, body, sharing)
    reply = CompletionReply(prepared, body.model or server.model_name, server.names, server.checkpoint)
    return await answer(request, server, prepared, reply, bool(body.stream))


@router.post("/v1/chat/completions", dependencies=HAS_PLACE)
async def chat_completions(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[ChatBody, Depends(body_of(ChatBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Answers a conversation: OpenAI's chat completions, with tools, streamed or whole."""
    prepared = await prepare(server, body, sharing)
    reply = ChatReply(prepared, body.model or server.model_name, server.names)
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
    completions = await whole(request, subscription, _collect(prepared, subscription))
    return completions if isinstance(completions, Response) else JSONResponse(writer.whole(completions))


async def whole(request: Request, subscription: Subscription, work: Coroutine[Any, Any, T]) -> T | Response:
    """The result of work on what a subscription yields, or the response to a client that has left meanwhile.

    Either way the subscription is closed, which cancels what has not ended.
    """
    try:
        return await race(work, request.receive)
    except ClientGone:
        note_gone(request.scope)
        return Response(status_code=errors.CLIENT_CLOSED_REQUEST)
    finally:
        subscription.close()


async def _collect(prepared: Prepared, subscription: Subscription) -> dict[str, Completion]:
    completions = {request.id: Completion() for request in prepared.requests}
    async for output in subscription:
        completions[output.request_id].extend(output)
    return completions


async def _events(subscription: Subscription, writer: Writer, retry_after_s: int) -> AsyncIterator[str]:
    """Yields the events as they are sent, the first ones with the first token. A later error is an event as well."""
    opening = writer.opening()
    try:
        async for output in subscription:
            for chunk in itertools.chain(opening, writer.chunks(output)):
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


@router.post("/v1/responses", name="create", dependencies=HAS_PLACE)
async def create_response(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[ResponsesBody, Depends(body_of(ResponsesBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Answers input items: OpenAI's Responses API. `previous_response_id` continues an earlier response."""
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = _find_stored(server, body.previous_response_id, sharing, "previous_response_id").messages
    try:
        chat = responses.to_chat(body, earlier)
    except (ValidationError, PydanticCustomError) as error:
        raise readable(error, ResponsesBody).renamed(OWN_NAMES) from None
    try:
        prepared = await prepare(server, chat, sharing)
    except ApiError as error:
        raise error.renamed(OWN_NAMES) from None
    keep = None if body.store is False else _keeper(server, chat, body, sharing)
    reply = ResponseReply(body, prepared, body.model or server.model_name, server.names, keep)
    return await answer(request, server, prepared, reply, bool(body.stream))


@router.get("/v1/responses/{response_id}")
async def retrieve(
    response_id: str,
    server: Annotated[Context, Depends(context)],
    sharing: Annotated[str | None, Depends(owner)],
) -> dict[str, Any]:
    """Returns a stored response."""
    return _find_stored(server, response_id, sharing).response


@router.delete("/v1/responses/{response_id}")
async def delete(
    response_id: str,
    server: Annotated[Context, Depends(context)],
    sharing: Annotated[str | None, Depends(owner)],
) -> dict[str, Any]:
    """Forgets a stored response."""
    _find_stored(server, response_id, sharing)
    server.responses.remove(response_id, sharing)
    return {"id": response_id, "object": "response", "deleted": True}


def _find_stored(server: Context, response_id: str, sharing: str | None, param: str | None = None) -> Stored:
    """A response that is kept. Raises ApiError if there is none of this id."""
    found = server.responses.get(response_id, sharing)
    if found is None:
        message = (
            f"the response {response_id!r} is not kept here; the last {server.responses.most_responses} are, unless "
            "they were made with store=false, and none outlives the server (server.max_stored_responses)"
        )
        raise ApiError(404 if param is None else 400, message, param=param, code="previous_response_not_found")
    return found


def _keeper(
    server: Context, chat: ChatBody, body: ResponsesBody, sharing: str | None
) -> Callable[[dict[str, Any]], None]:
    """Returns what keeps a response, with the conversation that led to it but for the instructions."""
    messages = [message.plain() for message in chat.messages][1 if body.instructions else 0 :]

    def keep(response: dict[str, Any]) -> None:
        whole = [*messages, *responses.to_messages(response["output"])]
        size = len(json.dumps(whole)) + len(json.dumps(response))
        server.responses.add(Stored(response, whole, sharing, size))

    return keep


@router.post("/v1/messages", name="create", dependencies=HAS_PLACE)
async def create_message(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[MessagesBody, Depends(body_of(MessagesBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Answers a conversation: Anthropic's Messages API."""
    chat = _chat(body)
    try:
        prepared = await prepare(server, chat, sharing)
    except ApiError as error:
        raise error.renamed({"response_format": "output_config.format"}) from None
    reply = MessageReply(prepared, body.model or server.model_name, server.checkpoint.tokenizer)
    return await answer(request, server, prepared, reply, bool(body.stream))


@router.post("/v1/messages/count_tokens")
async def count_tokens(
    server: Annotated[Context, Depends(context)], body: Annotated[CountBody, Depends(body_of(CountBody))]
) -> dict[str, Any]:
    """Counts the tokens of a conversation as Anthropic's API does; nothing is generated."""
    server.conversion.check_model(body.model)
    chat = _chat(body)
    tokens = await server.tokenizing(lambda: server.conversion.chat_tokens(chat.messages, chat), chat.num_bytes)
    return {"input_tokens": len(tokens)}


def _chat(body: CountBody) -> ChatBody:
    try:
        return anthropic.to_chat(body)
    except (ValidationError, PydanticCustomError) as error:
        raise readable(error, type(body)) from None
