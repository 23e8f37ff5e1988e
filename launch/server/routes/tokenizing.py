"""The routes POST /tokenize, POST /detokenize and GET /tokenizer_info, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from launch.server import errors
from launch.server.bodies import body_of
from launch.server.context import Context, authorise, context
from launch.server.openai.protocol import DetokenizeBody, TokenizeBody

router = APIRouter(dependencies=[Depends(authorise)])


@router.post("/tokenize")
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


@router.post("/detokenize")
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


@router.get("/tokenizer_info")
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
