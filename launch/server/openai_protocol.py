"""The bodies of requests: those of OpenAI's API, with this project's extensions.

Fields that do not influence the output are ignored, and so are those that the server does not know, with a warning
(launch/server/foreign_fields.py). Fields that it knows but does not support are refused. A field that allows several
shapes of a value is converted to one shape. Structured output may be asked for in these forms:

    response_format      {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}} (OpenAI)
    structured_outputs   {"json": {...}}, or regex, choice, grammar or json_object (vLLM)
    guided_json          a schema; guided_regex, guided_choice, guided_grammar: likewise (vLLM, older)

A request has one of them at most. Every schema is kept, whatever `strict` says; with `strict` its objects are closed
even where server.open_schemas leaves others open.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, model_validator

from launch.server.bodies import Body, Part, is_off, refused
from launch.server.tools import ToolChoice
from lp.grammar.closed_schemas import closed
from lp.grammar.settings import Grammar, GrammarError
from lp.text.chat_template import Rendering

MOST_STOPS = 16
LONGEST_STOP = 256


def _must_be_off(value: Any, info: ValidationInfo) -> Any:
    if is_off(value):
        return value
    raise refused("{field} is not supported by this server; leave it out", field=info.field_name)


def _at_least_one(value: int | None, info: ValidationInfo) -> int | None:
    if value is None or value >= 1:
        return value
    raise refused("{field}={value} is out of range: it must be at least 1", field=info.field_name, value=value)


def _truncation(value: int | None) -> int | None:
    if value is None or value >= 1 or value == -1:
        return value
    raise refused(
        "truncate_prompt_tokens={value} is out of range: it must be at least 1, or -1 for as many as there is room for",
        value=value,
    )


def _minus_one_is_unset(value: int | None) -> int | None:
    return None if value == -1 else value


def _stops(value: Any) -> Any:
    """Converts None, a string or a list of strings to a list."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refused("stop must be a string or a list of strings")
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise refused(
            "stop takes at most {most} strings of at most {longest} characters", most=MOST_STOPS, longest=LONGEST_STOP
        )
    return stops


def _prompts(value: Any, info: ValidationInfo) -> Any:
    """Converts a string, token ids, or a list of either to a list of prompts, each a string or token ids."""
    is_one = isinstance(value, str) or not (isinstance(value, list) and value and isinstance(value[0], str | list))
    prompts = [value] if is_one else value
    if all(_is_prompt(prompt) for prompt in prompts):
        return prompts
    raise refused("{field} must be a string or a list of token ids, or a list of such prompts", field=info.field_name)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value))


def _text(value: Any) -> Any:
    """Takes None, a string or a list of text parts, and joins them to one string."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = repr(part.get("type"))[:50] if isinstance(part, dict) else type(part).__name__
            message = "content must be a string or a list of text parts, not {kind}; this server reads text alone"
            raise refused(message, kind=kind)
    return "".join(part["text"] for part in parts)


def _only_text_modality(value: Any) -> Any:
    if value in (None, ["text"]):
        return None
    raise refused('modalities must be ["text"]; this server writes text alone')


Off = Annotated[Any, AfterValidator(_must_be_off)]
AtLeastOne = Annotated[int | None, AfterValidator(_at_least_one)]
Truncation = Annotated[int | None, AfterValidator(_truncation)]
Seed = Annotated[int | None, AfterValidator(_minus_one_is_unset)]
Stops = Annotated[list[str], BeforeValidator(_stops)]
Prompts = Annotated[Any, BeforeValidator(_prompts)]
TextField = Annotated[str, BeforeValidator(_text)]
OnlyTextModality = Annotated[Any, BeforeValidator(_only_text_modality)]
Ignored = Any


class Function(Part):
    """What a tool is called by, and the JSON Schema of its arguments."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """A tool that the client offers."""

    type: Literal["function"] = "function"
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool as chat templates get it."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}

    def constrained(self) -> dict[str, Any]:
        """The tool whose parameters a grammar keeps."""
        plain, parameters = self.plain(), self.function.parameters
        if self.function.strict and parameters is not None:
            plain["function"]["parameters"] = closed(parameters)
        return plain


class CalledFunction(Part):
    name: str
    arguments: str | dict[str, Any] = "{}"


class Call(Part):
    """A call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


def _choice(value: Any) -> Any:
    if value is None or isinstance(value, ToolChoice):
        return value
    if value in ("none", "auto", "required"):
        return ToolChoice(value)
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return ToolChoice("named", function["name"])
    raise refused('tool_choice must be none, auto, required or {"type": "function", "function": {"name": "..."}}')


def _function_call(value: Any) -> Any:
    match value:
        case None | ToolChoice():
            return value
        case "none" | "auto":
            return ToolChoice(value)
        case {"name": str(name)}:
            return ToolChoice("named", name)
    raise refused('function_call must be none, auto or {"name": "..."}')


FunctionCall = Annotated[Any, BeforeValidator(_function_call)]
Choice = Annotated[Any, BeforeValidator(_choice)]


# What chat templates see of a message.
_WRITTEN = {"content", "name", "tool_call_id", "reasoning_content"}


class Message(Part):
    """One message of a conversation. What a client or another server has added to it is ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextField = ""
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Off = None
    audio: Off = None
    function_call: CalledFunction | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates get it, which know tools and no functions."""
        calls = self.tool_calls or ([Call(function=self.function_call)] if self.function_call else [])
        written = {"tool_calls": [call.model_dump(exclude_none=True) for call in calls]} if calls else {}
        role = "tool" if self.role == "function" else self.role
        return {"role": role, "content": "", **self.model_dump(exclude_none=True, include=_WRITTEN), **written}


class Conversation(Body):
    """Messages, and how the chat template writes them: fields of all bodies that have messages, as in vLLM."""

    tools: list[Tool] | None = None
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Off = None
    documents: Off = None

    @property
    def offered(self) -> list[Tool]:
        """The client's tools."""
        return self.tools or []

    @property
    def choice(self) -> ToolChoice:
        """Whether tools are called; without a word of the client, they may be called if there are some."""
        return self.tool_choice or ToolChoice("auto" if self.offered else "none")

    @property
    def allows_parallel(self) -> bool:
        """Whether an answer may have more than one call."""
        return self.parallel_tool_calls is not False

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is told of: none if it must not call any."""
        return [] if self.choice.mode == "none" else [tool.plain() for tool in self.offered]

    @property
    def constrained_tools(self) -> list[dict[str, Any]]:
        """The tools of which one must be called."""
        return [tool.constrained() for tool in self.offered]

    @model_validator(mode="after")
    def _check_tools(self) -> Conversation:
        names = [tool.function.name for tool in self.offered]
        if self.choice.is_forced and not names:
            raise refused("tool_choice={mode} needs tools", mode=self.choice.mode)
        if self.choice.mode == "named" and self.choice.name not in names:
            raise refused("tool_choice names {name}, which is not among the tools", name=self.choice.name)
        return self

    @property
    def rendering(self) -> Rendering:
        return Rendering(
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            add_special_tokens=bool(self.add_special_tokens),
            variables=self.chat_template_kwargs or {},
        )


# Constraints of `structured_outputs`. Its other keys concern a backend's details, and change nothing if they are off.
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")
DETAILS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "structural_tag")


def _schema(value: Any) -> Grammar:
    if not isinstance(value, dict | str | bool):
        raise GrammarError(f"a JSON schema must be an object, not {type(value).__name__}")
    return Grammar.json_schema(value)


def _of_kind(kind: str, value: Any) -> Grammar:
    """The grammar of a constraint of vLLM's, by its name. Raises GrammarError."""
    match kind, value:
        case "json", _:
            return _schema(value)
        case "json_object", True:
            return Grammar.json_object()
        case "choice", [*texts]:
            return Grammar.choice(texts)
        case "regex", str():
            return Grammar("regex", value)
        case "grammar", str():
            return Grammar("grammar", value)
    shape = {"choice": "a list of strings", "json_object": "true"}.get(kind, "a string")
    raise GrammarError(f"{kind} must be {shape}")


def _check(grammar: Grammar) -> Grammar:
    grammar.check()
    return grammar


def _response_format(value: Any) -> Grammar | None:
    match value:
        case None | {"type": "text"}:
            return None
        case Grammar():
            return value
        case {"type": "json_object"}:
            return Grammar.json_object()
        case {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}:
            return _read("json_schema.schema", lambda: _check(_schema(schema)).closed())
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return _read("json_schema.schema", lambda: _check(_schema(schema)))
        case {"type": "json_schema"}:
            raise refused('response_format of type "json_schema" needs the schema as json_schema.schema')
    raise refused('response_format must be {"type": "text"}, {"type": "json_object"} or of type "json_schema"')


def _structured_outputs(value: Any) -> Grammar | None:
    if value is None or isinstance(value, Grammar):
        return value
    if not isinstance(value, dict):
        raise refused("structured_outputs must be an object with one of json, regex, choice, grammar and json_object")
    for key, one in value.items():
        if key not in (*CONSTRAINTS, *DETAILS):
            raise refused("structured_outputs.{key} is not known; leave it out", key=key)
        if key in DETAILS and one not in (None, False):
            raise refused("structured_outputs.{key} is not supported by this server; leave it out", key=key)
    given = {key: value[key] for key in CONSTRAINTS if value.get(key) not in (None, False)}
    if len(given) != 1:
        raise refused("structured_outputs must have one of json, regex, choice, grammar and json_object")
    ((kind, one),) = given.items()
    return _read(kind, lambda: _check(_of_kind(kind, one)))


def _guided(kind: str) -> BeforeValidator:
    def read(value: Any) -> Grammar | None:
        if value is None or isinstance(value, Grammar):
            return value
        return _read("", lambda: _check(_of_kind(kind, value)))

    return BeforeValidator(read)


def _read(where: str, read: Any) -> Grammar:
    try:
        return read()
    except GrammarError as error:
        raise refused("{where}{reason}", where=where and f"{where}: ", reason=str(error)) from None


class StructuredBody(BaseModel):
    """The fields of a body that say what the text must be. Each is a Grammar once it is read."""

    response_format: Annotated[Any, BeforeValidator(_response_format)] = None
    structured_outputs: Annotated[Any, BeforeValidator(_structured_outputs)] = None
    guided_json: Annotated[Any, _guided("json")] = None
    guided_regex: Annotated[Any, _guided("regex")] = None
    guided_choice: Annotated[Any, _guided("choice")] = None
    guided_grammar: Annotated[Any, _guided("grammar")] = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: None = None

    @property
    def grammars(self) -> dict[str, Grammar]:
        """What is given, by the fields."""
        found = {name: getattr(self, name) for name in StructuredBody.model_fields}
        return {name: value for name, value in found.items() if isinstance(value, Grammar)}


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

    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: Truncation = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str | list[int]] | None = None
    return_tokens_as_token_ids: bool | None = None
    use_beam_search: Off = None
    return_token_ids: Off = None

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
    def limit_field(self) -> str:
        """The field that says how many new tokens there may be."""
        return "max_tokens"

    @property
    def most_tokens(self) -> int | None:
        return getattr(self, self.limit_field)

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
            message = "{field}={most} is out of range: it must be at least {least}"
            raise refused(message, field=self.limit_field, most=most, least=least)
        if self.stream and self.prompt_logprobs is not None:
            raise refused("prompt_logprobs cannot be streamed; use echo and logprobs, or stream=false")
        if most is not None and self.min_tokens is not None and self.min_tokens > most:
            message = "min_tokens={least} is more than {limit}={most}"
            raise refused(message, limit=self.limit_field, most=most, least=self.min_tokens)
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
    suffix: str | None = None

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
        if self.suffix and self.echo:
            raise refused("echo is not for a text before a suffix; leave out echo or suffix")
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
    functions: list[Function] | None = None
    function_call: FunctionCall = None
    audio: Off = None
    echo: Off = None
    web_search_options: Off = None
    prediction: Ignored = None

    @property
    def wants_function_call(self) -> bool:
        """Whether the client knows functions, of which one is called at a time, and no tools, as before 2023-11."""
        return bool(self.functions) and not self.tools

    @property
    def offered(self) -> list[Tool]:
        return [*super().offered, *(Tool(function=function) for function in self.functions or [])]

    @property
    def choice(self) -> ToolChoice:
        return super().choice if self.function_call is None else self.function_call

    @property
    def allows_parallel(self) -> bool:
        return super().allows_parallel and not self.wants_function_call

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

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
