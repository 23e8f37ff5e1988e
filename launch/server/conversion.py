"""Converts a request's body to the engine's Requests. Knows nothing of HTTP.

A body with several prompts, or that asks for several choices, becomes a request for each text. Choice i of a prompt has
the body's seed plus i, as in vLLM, so choice 0 of each prompt is what the prompt yields by itself."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.server import errors
from launch.server.bodies import named_field
from launch.server.errors import ApiError
from launch.server.openai_protocol import (
    ChatBody,
    CompletionBody,
    Conversation,
    GenerationBody,
    Message,
    StructuredBody,
)
from launch.server.tools import Dialect, Reading, schema_of_calls
from lp.engine.input import ContextExceeded, RequestBuilder
from lp.grammar.settings import Grammar, GrammarError
from lp.methods.registry import from_dict
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import DecodingMethod, Request
from lp.sampling.settings import Sampling
from lp.text.chat_template import NoChatTemplate
from lp.text.infilling import infill
from lp.text.stopping import Stopping

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING += ("no_repeat_ngram", "logit_bias", "allowed_token_ids", "seed")


@dataclass(frozen=True)
class Prepared:
    """The requests of one body, ready for the engine, and what its reply must contain.

    id: of the reply. requests: the candidates of the first prompt, those of the second one, and so on. echoes: for each
    prompt, the text before the generated text. num_choices: how many of a prompt's candidates are returned.
    num_echoed, num_of_prompt: alternatives that are shown for each token of an echoed prompt, and in the field
    prompt_logprobs; None shows no log-probabilities there. reading: how the answers of a chat are read.
    wants_usage_so_far: every chunk of a stream says what it has cost so far. wants_function_call: a call is a message's
    `function_call`. names_by_id: log-probabilities name tokens by their ids.
    """

    id: str
    requests: list[Request]
    echoes: list[str]
    num_choices: int
    wants_logprobs: bool
    wants_usage: bool
    wants_usage_so_far: bool = False
    num_echoed: int | None = None
    num_of_prompt: int | None = None
    reading: Reading | None = None
    wants_function_call: bool = False
    names_by_id: bool = False

    @property
    def num_candidates(self) -> int:
        """The number of texts that are generated for each prompt."""
        return len(self.requests) // len(self.echoes)

    @property
    def is_traced(self) -> bool:
        """Whether each step has a chunk, even if its text is held back or no rank can tell its trace any more."""
        return any(request.trace for request in self.requests)


class Conversion:
    """Turns bodies into requests for one engine's model."""

    def __init__(
        self,
        request_builder: RequestBuilder,
        model_names: Sequence[str],
        default_max_tokens: int,
        max_choices: int,
        open_schemas: bool = False,
    ):
        self.request_builder = request_builder
        self.open_schemas = open_schemas
        self.model_names = model_names
        self.default_max_tokens = default_max_tokens
        self.max_choices = max_choices
        self._dialect = Dialect(self.checkpoint.tokenizer)

    @property
    def checkpoint(self) -> CheckpointInfo:
        return self.request_builder.checkpoint

    def prepare(self, body: CompletionBody | ChatBody, owner: str | None, grammar: Grammar | None) -> Prepared:
        """Converts a body to requests.

        owner: the requests may share drafts with requests of the same owner. grammar: the body's, see `grammar_of`.
        Raises ApiError.
        """
        self.check_model(body.model)
        number = body.num_candidates
        self._check_number(body, number, "n" if number == body.num_choices else "best_of")
        reply_id = f"{'chatcmpl' if isinstance(body, ChatBody) else 'cmpl'}-{secrets.token_hex(12)}"
        prompts = self._prompts(body)
        reading = self._reading(body, prompts[0], grammar) if isinstance(body, ChatBody) else None
        requests: list[Request] = []
        try:
            for tokens in prompts:
                first = self._request(body, tokens, owner, reading, grammar)
                requests += [first, *(_another(first, number) for number in range(1, body.num_candidates))]
        except ValueError as error:
            raise _refusal(error, body) from None
        for number, request in enumerate(requests):
            request.id = f"{reply_id}-{number}" if number else reply_id
        return Prepared(
            reply_id,
            requests,
            self._echoes(body, prompts),
            body.num_choices,
            body.num_logprobs is not None,
            body.wants_usage,
            body.wants_usage_so_far,
            body.num_echoed_logprobs if isinstance(body, CompletionBody) else None,
            body.prompt_logprobs,
            reading,
            isinstance(body, ChatBody) and body.wants_function_call,
            bool(body.return_tokens_as_token_ids),
        )

    def grammar_of(self, body: CompletionBody | ChatBody) -> Grammar | None:
        """What the text must be: a call, if one has to be made. Raises ApiError for more than one constraint."""
        grammar = self._given_grammar(body)
        return grammar if grammar is None or self.open_schemas else grammar.closed()

    @staticmethod
    def _given_grammar(body: CompletionBody | ChatBody) -> Grammar | None:
        if isinstance(body, ChatBody) and body.choice.is_forced:
            schema = schema_of_calls(body.constrained_tools, body.choice, body.allows_parallel)
            return Grammar.json_schema(schema)
        if not StructuredBody.model_fields.keys() & body.model_fields_set:
            return None
        names = list(body.grammars)
        if len(names) > 1:
            raise errors.bad_request(f"{' and '.join(names)} exclude each other; send one of them", param=names[-1])
        return body.grammars[names[0]] if names else None

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.model_names:
            raise errors.unknown_model(name, self.model_names)

    def chat_tokens(self, messages: list[Message], body: Conversation) -> list[int]:
        """Returns the conversation of a body as the checkpoint's chat template writes it. Raises ApiError."""
        plain = [message.plain() for message in messages]
        try:
            plain, tools = self._dialect.write(plain, body.shown_tools)
            return self.request_builder.encode(plain, replace(body.rendering, tools=tools))
        except NoChatTemplate:
            message = f"the model {self.model_names[0]!r} has no chat template; use /v1/completions"
            raise errors.bad_request(message, param="messages", code="no_chat_template") from None
        except ValueError as error:
            first_word = str(error).split(" ", 1)[0]
            param = first_word if first_word in ChatBody.model_fields else "messages"
            raise errors.bad_request(str(error), param=param) from None

    def _check_number(self, body: CompletionBody | ChatBody, number: int, name: str) -> None:
        """Raises ApiError for a body that asks for too many texts. number: of each prompt, as the field `name` says."""
        num_prompts = 1 if isinstance(body, ChatBody) else len(body.prompt)
        if num_prompts * number > self.max_choices:
            message = (
                f"{name}={number} for {num_prompts} prompt{'s' * (num_prompts > 1)} asks for more than the"
                f" {self.max_choices} texts that a request may ask for (server.max_choices)"
            )
            raise errors.bad_request(message, param=name.partition(".")[0] if number > 1 else "prompt")

    def _prompts(self, body: CompletionBody | ChatBody) -> list[list[int]]:
        """The tokens of each prompt. Raises ApiError."""
        if isinstance(body, ChatBody):
            prompts = [self.chat_tokens(body.messages, body)]
        else:
            try:
                prompts = [self._prompt(prompt, body) for prompt in body.prompt]
            except ValueError as error:
                raise errors.bad_request(str(error), param="prompt") from None
        return [self.truncated(prompt, body.truncate_prompt_tokens, body.most_tokens) for prompt in prompts]

    def _prompt(self, prompt: str | list[int], body: CompletionBody) -> list[int]:
        with_special = body.add_special_tokens is not False
        if not body.suffix:
            return self.request_builder.encode(prompt, add_special_tokens=with_special)
        beginning = self.request_builder.encode(prompt, add_special_tokens=False) if prompt else []
        try:
            return infill(self.checkpoint.tokenizer, beginning, body.suffix, with_special)
        except ValueError as error:
            raise errors.bad_request(f"suffix: {error}", param="suffix") from None

    def truncated(self, prompt: list[int], most: int | None, num_new: int | None = None) -> list[int]:
        """The last `most` tokens of a prompt; -1 is as many as leave room for `num_new` tokens, None is all."""
        if most == -1:
            most = max(1, self.checkpoint.max_length - max(1, num_new or 0))
        return prompt if most is None else prompt[-most:]

    def _reading(self, body: ChatBody, prompt: list[int], grammar: Grammar | None) -> Reading:
        return self._dialect.reading(body.shown_tools, body.choice, body.allows_parallel, prompt, grammar)

    def _default_max_tokens(self, tokens: list[int]) -> int:
        room = self.checkpoint.max_length - len(tokens)
        return max(1, min(self.default_max_tokens, room))

    def _request(
        self,
        body: CompletionBody | ChatBody,
        tokens: list[int],
        owner: str | None,
        reading: Reading | None,
        grammar: Grammar | None,
    ) -> Request:
        """The first request of a prompt."""
        most_tokens = body.most_tokens
        if most_tokens is None and isinstance(body, CompletionBody):
            most_tokens = self._default_max_tokens(tokens)
        decode = None if body.decode is None else from_dict(body.decode, self.request_builder.decode)
        if not (wanted := decode or self.request_builder.decode).tells_steps:
            self._check_ranked(body, wanted)
        skips = body.skip_special_tokens is not False and not (reading and reading.kept)
        stopping = Stopping(
            most_tokens, body.stop, body.stop_token_ids or [], bool(body.ignore_eos), skips,
            bool(body.include_stop_str_in_output),
        )  # fmt: skip
        priority = body.priority or 1.0  # vLLM's clients write 0 for no priority
        return self.request_builder.build(
            tokens, decode, self._sampling(body), stopping, None, owner, priority, grammar, bool(body.lookahead_trace)
        )

    def _check_ranked(self, body: CompletionBody | ChatBody, decode: DecodingMethod) -> None:
        """Raises ApiError for ranked texts that are to be streamed, or to be made several times, or are too many."""
        name = f"decode={decode.method}"
        if body.stream:
            raise errors.bad_request(f"{name} has no text before its end; leave out stream", param="stream")
        if body.num_candidates > 1:
            message = f"{name} yields the same texts each time; use decode.num_return_sequences instead"
            raise errors.bad_request(message, param="n" if body.num_candidates == body.num_choices else "best_of")
        if decode.num_sequences > 1:
            self._check_number(body, decode.num_sequences, "decode.num_samples")

    def _sampling(self, body: GenerationBody) -> Sampling:
        """Returns the sampling settings of the body; the others are left to the server's defaults."""
        given: dict[str, Any] = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
        if body.top_k is not None:  # vLLM's clients write -1 for off
            given["top_k"] = 0 if body.top_k == -1 else min(body.top_k, self.checkpoint.vocab_size)
        num_logprobs = body.num_logprobs
        if num_logprobs is None and body.num_candidates > body.num_choices:
            num_logprobs = 0  # the best are found by them
        given |= {"logprobs": num_logprobs, "prompt_logprobs": body.num_prompt_logprobs}
        given["bad_words"] = self._bad_words(body.bad_words or [])
        return Sampling(**given, min_new_tokens=body.min_tokens)

    def _bad_words(self, words: list[str | list[int]]) -> list[list[int]]:
        """The tokens of words at the beginning of a text and, with a space before them, within it, as in vLLM."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if isinstance(word, list):  # tokens already
                found[tuple(word)] = None
                continue
            if not word.strip():
                raise ValueError("bad_words holds an empty word; leave it out")
            for text in (word.lstrip(), f" {word.lstrip()}"):
                tokens = self.checkpoint.tokenizer.encode(text, add_special_tokens=False)
                found[tuple(tokens)] = None
        return [list(tokens) for tokens in found]

    def _echoes(self, body: CompletionBody | ChatBody, prompts: list[list[int]]) -> list[str]:
        """Returns the text before the generated text of each prompt. prompts: as they are fed."""
        if isinstance(body, ChatBody):
            return [""]
        shown = body.prompt if body.truncate_prompt_tokens is None else prompts
        return [self._text_of(prompt) if body.echo else "" for prompt in shown]

    def _text_of(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self.checkpoint.tokenizer.decode(prompt, skip_special_tokens=True))


def _another(first: Request, number: int) -> Request:
    """Another choice of the same prompt, with the next seed but so many."""
    return replace(first, sampling=first.sampling.another(number))


def _refusal(error: ValueError, body: GenerationBody) -> ApiError:
    """Converts an error of lp.RequestBuilder to the names that the API has for the settings."""
    if isinstance(error, GrammarError) and isinstance(body, ChatBody) and body.choice.is_forced:
        return errors.bad_request(f"tools: {error}", param="tools", code="invalid_grammar")
    if isinstance(error, GrammarError):
        name = next(iter(body.grammars), None)
        return errors.bad_request(f"{name}: {error}" if name else str(error), param=name, code="invalid_grammar")
    if isinstance(error, ContextExceeded) and error.context is not None:
        return _too_long(error, error.context, body)
    message = str(error).replace("max_new_tokens", body.limit_field).replace("min_new_tokens", "min_tokens")
    code = "context_length_exceeded" if isinstance(error, ContextExceeded) else None
    return errors.bad_request(message, param=named_field(message, type(body)), code=code)


def _too_long(error: ContextExceeded, context: int, body: GenerationBody) -> ApiError:
    """Says in OpenAI's words, which programs look for, that a request exceeds the context, and names the field."""
    prompt = "messages" if isinstance(body, ChatBody) else "prompt"
    wanted = 1 if error.wanted is None else error.wanted
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{error.prompt_tokens + wanted} tokens ({error.prompt_tokens} in the {prompt}, {wanted} in the completion). "
        f"Please reduce the length of the {prompt} or completion."
    )
    param = prompt if error.prompt_tokens >= context else body.limit_field
    return errors.bad_request(message, param=param, code="context_length_exceeded")
