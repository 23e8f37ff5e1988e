"""The bodies of requests: those of OpenAI's API, with this project's extensions.

Fields that do not influence the output are ignored. Other fields that the server does not support are refused.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from pydantic import Field, model_validator

from launch.server.bodies import Body, Part, refused
from launch.server.openai.conversation import Conversation, Message
from launch.server.openai.fields import (
    AtLeastOne,
    Ignored,
    NoFunctionCall,
    Off,
    OnlyTextModality,
    Prompts,
    Seed,
    Stops,
)
from launch.server.openai.structured import StructuredBody


class StreamOptions(Part):
    """continuous_usage_stats: every chunk says what the request has cost so far, as in vLLM; needs include_usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body, StructuredBody):
    """The fields that completions and chat completions share.

    n: choices for each prompt. prompt_logprobs, skip_special_tokens, add_special_tokens and chat_template_kwargs mean
    what they mean in vLLM.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: Stops = Field(default_factory=list)
    n: AtLeastOne = None

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: Seed = None

    decode: dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    priority: float | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    lookahead_trace: bool | None = Field(
        default=None,
        description="Each chunk that ends a step has the step's trace under `lookahead`; see docs/usage.md.",
    )

    include_stop_str_in_output: Off = None
    truncate_prompt_tokens: Off = None
    allowed_token_ids: Off = None
    bad_words: Off = None
    use_beam_search: Off = None
    return_token_ids: Off = None
    return_tokens_as_token_ids: Off = None

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    request_id: Ignored = None
    spaces_between_special_tokens: Ignored = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def num_choices(self) -> int:
        """The number of choices that the reply has for each prompt."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """The number of texts that are generated for each prompt; the best of them become choices."""
        return self.num_choices

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives wanted for each token; None if no log-probabilities are wanted."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for each token of the prompt. Where no token is wanted, the prompt's are computed all the same."""
        return 0 if self.prompt_logprobs is None and self.most_tokens == 0 else self.prompt_logprobs

    @property
    def shows_prompt(self) -> bool:
        """Whether the reply says something of the prompt itself, so that it may have no new token."""
        return self.prompt_logprobs is not None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_so_far(self) -> bool:
        return self.wants_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @model_validator(mode="after")
    def _check_together(self) -> GenerationBody:
        if self.stream_options and self.stream_options.model_fields_set and not self.stream:
            raise refused("stream_options is only allowed with stream=true")
        if self.lookahead_trace and not self.stream:
            raise refused("lookahead_trace is only allowed with stream=true")
        most = self.most_tokens
        least = 0 if self.shows_prompt else 1
        if most is not None and most < least:
            raise refused("max_tokens={most} is out of range: it must be at least {least}", most=most, least=least)
        if self.stream and self.prompt_logprobs is not None:
            raise refused("prompt_logprobs cannot be streamed; use echo and logprobs, or stream=false")
        if most is not None and self.min_tokens is not None and self.min_tokens > most:
            raise refused("min_tokens={least} is more than max_tokens={most}", least=self.min_tokens, most=most)
        return self


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions.

    best_of: texts generated for each prompt, of which those with the highest mean log-probability are returned.
    """

    prompt: Prompts
    add_special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: AtLeastOne = None
    suffix: Off = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.num_choices

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionBody:
        if self.num_candidates < self.num_choices:
            raise refused("best_of={best_of} is less than n={n}", best_of=self.best_of, n=self.num_choices)
        if self.stream and self.num_candidates > self.num_choices:
            raise refused("best_of={best_of} cannot be streamed: the best is known at the end", best_of=self.best_of)
        return self

    @property
    def num_echoed_logprobs(self) -> int | None:
        """The number of alternatives for each token of the echoed prompt; None if none are wanted."""
        return self.logprobs if self.echo else None

    @property
    def num_prompt_logprobs(self) -> int | None:
        wanted = (super().num_prompt_logprobs, self.num_echoed_logprobs)
        return max((number for number in wanted if number is not None), default=None)

    @property
    def shows_prompt(self) -> bool:
        return bool(self.echo) or super().shows_prompt


class ChatBody(GenerationBody, Conversation):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    modalities: OnlyTextModality = None
    functions: Off = None
    function_call: NoFunctionCall = None
    audio: Off = None
    echo: Off = None
    web_search_options: Off = None
    reasoning_effort: Off = None
    verbosity: Off = None
    prediction: Ignored = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs is only allowed with logprobs=true")
        return self


def chat_of(body: GenerationBody, own_fields: Set[str], given: dict[str, Any]) -> ChatBody:
    """The chat request that another API's body stands for.

    own_fields: fields of all routes that mean something else in that API. given: what else the chat request has; None
    is left out. Raises pydantic's ValidationError.
    """
    shared = body.model_fields_set & (GenerationBody.model_fields.keys() - own_fields)
    values = {name: getattr(body, name) for name in shared} | given
    chat = ChatBody.model_validate({name: value for name, value in values.items() if value is not None})
    chat._num_bytes = body.num_bytes
    return chat


class TokenizeBody(Conversation):
    """The body of POST /tokenize: a prompt, which gets special tokens by default, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_either(self) -> TokenizeBody:
        if (self.prompt is None) == (not self.messages):
            raise refused("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]
