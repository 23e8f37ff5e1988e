"""The routes of Anthropic's Messages API: POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from launch.server.anthropic.protocol import CountBody, MessagesBody, to_chat
from launch.server.anthropic.replies import MessageReply
from launch.server.bodies import body_of, readable
from launch.server.context import Context, authorise, context, has_place, owner
from launch.server.errors import ApiError
from launch.server.openai.protocol import ChatBody
from launch.server.routes.generation import answer, prepare

router = APIRouter(dependencies=[Depends(authorise)])


@router.post("/v1/messages", dependencies=[Depends(has_place)])
async def create(
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
    skips = prepared.requests[0].stopping.skip_special_tokens

    def decode(tokens: list[int]) -> str:
        return server.checkpoint.tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=skips)

    reply = MessageReply(prepared, server.model_name, decode)
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
        return to_chat(body)
    except (ValidationError, PydanticCustomError) as error:
        raise readable(error, type(body)) from None
