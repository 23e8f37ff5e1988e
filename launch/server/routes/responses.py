"""The routes of OpenAI's Responses API: POST /v1/responses, and GET and DELETE of one that is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from launch.server.bodies import body_of, readable
from launch.server.context import Context, authorise, context, has_place, owner
from launch.server.errors import ApiError
from launch.server.openai.protocol import ChatBody
from launch.server.responses.items import to_messages
from launch.server.responses.protocol import ResponsesBody, to_chat
from launch.server.responses.replies import ResponseReply
from launch.server.responses.store import Stored
from launch.server.routes.generation import answer, prepare

# Fields by their names in a chat.
OWN_NAMES = {"response_format": "text.format", "max_tokens": "max_output_tokens", "messages": "input"}

router = APIRouter(dependencies=[Depends(authorise)])


@router.post("/v1/responses", dependencies=[Depends(has_place)])
async def create(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[ResponsesBody, Depends(body_of(ResponsesBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Answers input items: OpenAI's Responses API. `previous_response_id` continues an earlier response."""
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = _stored(server, body.previous_response_id, sharing, "previous_response_id").messages
    try:
        chat = to_chat(body, earlier)
    except (ValidationError, PydanticCustomError) as error:
        raise readable(error, ResponsesBody).renamed(OWN_NAMES) from None
    try:
        prepared = await prepare(server, chat, sharing)
    except ApiError as error:
        raise error.renamed(OWN_NAMES) from None
    keep = None if body.store is False else _keeper(server, chat, body, sharing)
    reply = ResponseReply(body, prepared, server.model_name, server.names, keep)
    return await answer(request, server, prepared, reply, bool(body.stream))


@router.get("/v1/responses/{response_id}")
async def retrieve(
    response_id: str,
    server: Annotated[Context, Depends(context)],
    sharing: Annotated[str | None, Depends(owner)],
) -> dict[str, Any]:
    """Returns a stored response."""
    return _stored(server, response_id, sharing).response


@router.delete("/v1/responses/{response_id}")
async def delete(
    response_id: str,
    server: Annotated[Context, Depends(context)],
    sharing: Annotated[str | None, Depends(owner)],
) -> dict[str, Any]:
    """Forgets a stored response."""
    _stored(server, response_id, sharing)
    server.responses.remove(response_id, sharing)
    return {"id": response_id, "object": "response", "deleted": True}


def _stored(server: Context, response_id: str, sharing: str | None, param: str | None = None) -> Stored:
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
        whole = [*messages, *to_messages(response["output"])]
        size = len(json.dumps(whole)) + len(json.dumps(response))
        server.responses.add(Stored(response, whole, sharing, size))

    return keep
