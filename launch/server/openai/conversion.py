"""Converts a request's body to the engine's Request. Knows nothing of HTTP."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from launch.server import errors
from launch.server.bodies import named_field
from launch.server.errors import ApiError
from launch.server.openai.protocol import ChatBody, CompletionBody, GenerationBody, Message
from lp import methods
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import Request
from lp.request_builder import ContextExceeded, RequestBuilder
from lp.sampling.settings import Sampling
from lp.text.chat_template import NoChatTemplate
from lp.text.stopping import Stopping

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING += ("no_repeat_ngram", "logit_bias", "seed")
NAMES_OF_THE_API = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


@dataclass(frozen=True)
class Prepared:
    """A request that is ready for the engine, and what its reply must contain.

    echo: text before the generated text. wants_usage_so_far: every chunk of a stream says what it has cost so far.
    """

    request: Request
    echo: str
    wants_logprobs: bool
    wants_usage: bool
    wants_usage_so_far: bool = False


class Conversion:
    """Turns bodies into requests for one engine's model."""

    def __init__(self, request_builder: RequestBuilder, model_name: str, default_max_tokens: int):
        self.request_builder = request_builder
        self.model_name = model_name
        self.default_max_tokens = default_max_tokens

    @property
    def checkpoint(self) -> CheckpointInfo:
        return self.request_builder.checkpoint

    def prepare(self, body: CompletionBody | ChatBody, owner: str | None) -> Prepared:
        """Converts a body to a request.

        owner: the request may share drafts with requests of the same owner. Raises ApiError.
        """
        self.check_model(body.model)
        try:
            tokens = self._tokens(body)
        except ValueError as error:
            raise errors.bad_request(str(error), param="prompt") from None
        most_tokens = body.most_tokens
        if most_tokens is None and isinstance(body, CompletionBody):
            most_tokens = self._default_max_tokens(tokens)
        try:
            request = self._request(body, tokens, most_tokens, owner)
        except ValueError as error:
            raise _refusal(error, body) from None
        return Prepared(
            request, self._echo(body), body.num_logprobs is not None, body.wants_usage, body.wants_usage_so_far
        )

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            raise errors.unknown_model(name, self.model_name)

    def chat_tokens(self, messages: list[Message]) -> list[int]:
        """Returns the conversation as the checkpoint's chat template writes it, up to where the assistant begins.

        Raises ApiError.
        """
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self.request_builder.encode(plain)
        except NoChatTemplate:
            message = f"the model {self.model_name!r} has no chat template; use /v1/completions"
            raise errors.bad_request(message, param="messages", code="no_chat_template") from None
        except ValueError as error:
            raise errors.bad_request(str(error), param="messages") from None

    def _tokens(self, body: CompletionBody | ChatBody) -> list[int]:
        if isinstance(body, ChatBody):
            return self.chat_tokens(body.messages)
        return self.request_builder.encode(body.prompt)

    def _default_max_tokens(self, tokens: list[int]) -> int:
        room = self.checkpoint.max_length - len(tokens)
        return max(1, min(self.default_max_tokens, room))

    def _request(
        self, body: CompletionBody | ChatBody, tokens: list[int], most_tokens: int | None, owner: str | None
    ) -> Request:
        decode = None if body.decode is None else methods.from_dict(body.decode, self.request_builder.decode)
        stopping = Stopping(most_tokens, body.stop, body.stop_token_ids or [], bool(body.ignore_eos))
        kind = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
        request_id = f"{kind}-{secrets.token_hex(12)}"
        priority = 1.0 if body.priority is None else body.priority
        return self.request_builder.build(tokens, decode, self._sampling(body), stopping, request_id, owner, priority)

    def _sampling(self, body: GenerationBody) -> Sampling:
        """Returns the sampling settings of the body; the others are left to the server's defaults."""
        given: dict[str, Any] = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
        return Sampling(**given, min_new_tokens=body.min_tokens, logprobs=body.num_logprobs)

    def _echo(self, body: CompletionBody | ChatBody) -> str:
        if isinstance(body, ChatBody) or not body.echo:
            return ""
        if isinstance(body.prompt, str):
            return body.prompt
        return str(self.checkpoint.tokenizer.decode(body.prompt, skip_special_tokens=True))


def _refusal(error: ValueError, body: GenerationBody) -> ApiError:
    """Converts an error of lp.RequestBuilder to the names that the API has for the settings."""
    message = str(error)
    for ours, theirs in NAMES_OF_THE_API.items():
        message = message.replace(ours, theirs)
    code = "context_length_exceeded" if isinstance(error, ContextExceeded) else None
    return errors.bad_request(message, param=named_field(message, type(body)), code=code)
