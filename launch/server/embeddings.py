"""POST /v1/embeddings: OpenAI's embeddings, made of the hidden states of the model that also generates text."""

from __future__ import annotations

import base64
import math
import secrets
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator

from launch.server import errors
from launch.server.bodies import Body, body_of, refused
from launch.server.context import Context, authorise, context, owner
from launch.server.generation import HAS_PLACE, whole
from launch.server.openai_protocol import Ignored, Prompts, Truncation
from launch.server.service import Subscription
from lp.engine.input import ContextExceeded
from lp.request import Pooling
from lp.request import Request as EngineRequest

router = APIRouter(dependencies=[Depends(authorise)])


def _one_size(value: int | None) -> int | None:
    if value is None:
        return None
    raise refused("dimensions={value} is not supported: this model's embeddings have one size", value=value)


class EmbeddingBody(Body):
    """The body of POST /v1/embeddings.

    input: a text, a list of texts, token ids, or a list of lists of token ids. pooling, normalize: in the place of the
    server's settings.
    """

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, AfterValidator(_one_size)] = None
    truncate_prompt_tokens: Truncation = None
    add_special_tokens: bool | None = None
    pooling: Literal["last", "mean", "LAST", "MEAN"] | None = None
    normalize: bool | None = None
    user: Ignored = None


@router.post("/v1/embeddings", dependencies=HAS_PLACE)
async def embeddings(
    request: Request,
    server: Annotated[Context, Depends(context)],
    body: Annotated[EmbeddingBody, Depends(body_of(EmbeddingBody))],
    sharing: Annotated[str | None, Depends(owner)],
) -> Response:
    """Returns the embedding of each input: the hidden state of its last token, or the mean of all."""
    requests = await server.tokenizing(lambda: make_requests(server, body, sharing), body.num_bytes)
    subscription = server.service.submit(*requests)
    found = await whole(request, subscription, _collect(subscription))
    if isinstance(found, Response):
        return found
    normalizes = server.settings.normalize_embeddings if body.normalize is None else body.normalize
    data = [
        {"object": "embedding", "index": number, "embedding": write(found[one.id], normalizes, body.encoding_format)}
        for number, one in enumerate(requests)
    ]
    num_tokens = sum(len(one.prompt) for one in requests)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
    return JSONResponse({"object": "list", "data": data, "model": body.model or server.model_name, "usage": usage})


def make_requests(server: Context, body: EmbeddingBody, owner: str | None) -> list[EngineRequest]:
    """A request for each input. Raises ApiError."""
    conversion = server.conversion
    conversion.check_model(body.model)
    if len(body.input) > conversion.max_choices:
        raise errors.bad_request(
            f"input has {len(body.input)} texts; one request may have {conversion.max_choices} (server.max_choices)",
            param="input",
        )
    builder, context_length = conversion.request_builder, server.checkpoint.max_length
    pooling = Pooling(body.pooling.lower()) if body.pooling else Pooling(server.settings.pooling)
    reply_id, requests = f"embd-{secrets.token_hex(12)}", list[EngineRequest]()
    for number, text in enumerate(body.input):
        try:
            tokens = builder.encode(text, add_special_tokens=body.add_special_tokens is not False)
            tokens = conversion.truncated(tokens, body.truncate_prompt_tokens)
            requests.append(builder.build_embedding(tokens, pooling, f"{reply_id}-{number}", owner))
        except ContextExceeded as error:
            raise errors.bad_request(
                f"input {number} has {error.prompt_tokens} tokens, and this model's maximum context length leaves room "
                f"for {context_length - 1}; shorten it, or send truncate_prompt_tokens=-1",
                param="input",
                code="context_length_exceeded",
            ) from None
        except ValueError as error:
            raise errors.bad_request(f"input: {error}", param="input") from None
    return requests


async def _collect(subscription: Subscription) -> dict[str, list[float]]:
    """The embeddings by the requests' ids."""
    return {output.request_id: output.embedding async for output in subscription if output.embedding is not None}


def write(embedding: list[float], normalizes: bool, encoding_format: str | None) -> Any:
    """An embedding as the reply has it: numbers, or the bytes of little-endian float32 numbers in base64."""
    length = math.hypot(*embedding) if normalizes else 1.0
    numbers = np.array(embedding) / (length or 1.0)
    if encoding_format == "base64":
        return base64.b64encode(numbers.astype("<f4").tobytes()).decode()
    return numbers.astype(np.float32).tolist()
