"""Anthropic's Messages API: its bodies, the chat requests that they stand for, and its replies."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field
from transformers import PreTrainedTokenizerFast

from launch.server.answer import Block, Blocks, Happening, new_call_id
from launch.server.bodies import Part, refused
from launch.server.conversion import Prepared
from launch.server.errors import ApiError, error_body
from launch.server.openai_protocol import ChatBody, GenerationBody, Ignored, Off, Stops, chat_of
from lp.request import Completion, Output
from lp.statistics import Statistics
from lp.text.detokenizer import Detokenizer

# Fields of a chat request that mean something else here, or are made from other fields.
_OWN_FIELDS = {"stream_options", "metadata", "stop", "max_tokens", "n"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class AnthropicMessage(Part):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class ToolChoice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountBody(GenerationBody):
    """The body of POST /v1/messages/count_tokens, with the extensions that the other routes have as well."""

    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    stop_sequences: Stops = Field(default_factory=list)
    chat_template_kwargs: dict[str, Any] | None = None

    n: Off = None
    lookahead_trace: Off = None
    container: Off = None
    mcp_servers: Off = None
    cache_control: Ignored = None
    context_management: Ignored = None
    diagnostics: Ignored = None
    inference_geo: Ignored = None
    speed: Ignored = None


class MessagesBody(CountBody):
    """The body of POST /v1/messages."""

    max_tokens: int  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


def to_chat(body: CountBody) -> ChatBody:
    """The chat request that a body stands for.

    Raises pydantic's ValidationError, and refusals, for what cannot be used.
    """
    system = [{"role": "system", "content": text_of(body.system, "system")}] if body.system else []
    choice = body.tool_choice
    given = {
        "messages": [*system, *to_messages([message.model_dump() for message in body.messages])],
        "max_tokens": body.max_tokens,
        "stop": [*body.stop, *body.stop_sequences] or None,
        "tools": [_tool(tool, number) for number, tool in enumerate(body.tools or [])] or None,
        "tool_choice": _tool_choice(choice) if choice else None,
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        "response_format": _response_format(body.output_config or {}) or body.response_format,
        "chat_template_kwargs": {**_thinking(body.thinking), **(body.chat_template_kwargs or {})} or None,
    }
    return chat_of(body, _OWN_FIELDS, given)


def _tool(tool: dict[str, Any], number: int) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None):
        message = "tools[{number}] is of the type {kind}, which runs on Anthropic's servers; give functions of your own"
        raise refused(message, number=number, kind=str(tool["type"])[:50])
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise refused("tool_choice of the type tool needs a name")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(config: dict[str, Any]) -> dict[str, Any] | None:
    form = config.get("format")
    if not isinstance(form, dict):
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema"), "strict": True}}


def _thinking(thinking: dict[str, Any] | None) -> dict[str, bool]:
    """The variable of the chat templates that have a switch for reasoning."""
    match (thinking or {}).get("type"):
        case "enabled":
            return {"enable_thinking": True}
        case "disabled":
            return {"enable_thinking": False}
        case _:
            return {}


def to_messages(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a chat that messages of Anthropic's API stand for.

    A user's message with results of tools becomes a message for each result, and one for the text. Raises a refusal for
    a block that this server does not know.
    """
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(given):
        where = f"messages[{number}].content"
        if isinstance(message["content"], str):
            messages.append({"role": message["role"], "content": message["content"]})
        elif message["role"] == "assistant":
            messages.append(_assistant(message["content"], where))
        else:
            messages += _user(message["role"], message["content"], where)
    return messages


def text_of(content: Any, where: str) -> str:
    """The text of a string or of blocks of text. where: the field, for errors."""
    if content is None or isinstance(content, str):
        return content or ""
    for block in content:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = repr(block.get("type"))[:50] if isinstance(block, dict) else type(block).__name__
            raise refused(
                "{where} must hold text alone, not {kind}; this server reads text alone", where=where, kind=kind
            )
    return "\n".join(block["text"] for block in content)


def _assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    thoughts = "".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking")
    known = ("tool_use", "thinking", "redacted_thinking")
    text = text_of([block for block in blocks if block.get("type") not in known], where)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    return {**message, "reasoning_content": thoughts} if thoughts else message


def _user(role: str, blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    results = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text_of(block.get("content"), where)}
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    texts = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": role, "content": text_of(texts, where)}] if texts or not results else [])]


Event = dict[str, Any]


def usage(stats: Statistics) -> dict[str, Any]:
    """The tokens of a request. Those of the prompt that were cached are counted apart, as Anthropic does."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.tokens,
        **({"lossy": stats.lossy} if stats.lossy else {}),
    }


class MessageReply:
    """The reply to one request. Its events must be made in the order of the stream.

    message: what the client has been sent so far.
    """

    names_events = True

    def __init__(self, prepared: Prepared, model_name: str, tokenizer: PreTrainedTokenizerFast):
        """tokenizer: by which the stop sequence is found that ended a text."""
        assert prepared.reading is not None
        (self._request,) = prepared.requests
        self._reader = prepared.reading.begin()
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_characters = 0
        self.message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Statistics(prompt_tokens=len(self._request.prompt))),
        }
        self._blocks = Blocks()

    def opening(self) -> Iterator[Event]:
        """Yields the events before the first token."""
        yield {"type": "message_start", "message": {**self.message, "content": []}}

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        """The message that answers a finished request."""
        (completion,) = completions.values()
        reason = completion.finish_reason
        for _ in self._write(completion.text, completion.token_ids, reason, completion.stats):
            pass
        return self.message

    def chunks(self, output: Output) -> Iterator[Event]:
        """Yields the events for what a step added."""
        yield from self._write(output.text, output.tokens, output.finish_reason, output.stats)

    def _write(self, text: str, tokens: list[int], reason: str | None, stats: Statistics) -> Iterator[Event]:
        self._tokens += tokens
        self._num_characters += len(text)
        yield from self._events(self._blocks.push(self._reader.read(text, is_last=reason is not None)))
        if reason is not None:
            yield from self._close(reason, stats)

    def _close(self, reason: str, stats: Statistics) -> Iterator[Event]:
        stop_sequence = self._stop_sequence() if reason == "stop" else None
        yield from self._events(self._blocks.ensure_one())
        yield from self._events(self._blocks.end())
        has_calls = any(block.kind == "call" for block in self._blocks.all)
        if reason in ("length", "dead_end"):
            stop_reason = "max_tokens"
        elif stop_sequence is not None:
            stop_reason = "stop_sequence"
        else:
            stop_reason = "tool_use" if has_calls else "end_turn"
        figures = usage(stats)
        self.message |= {"stop_reason": stop_reason, "stop_sequence": stop_sequence, "usage": figures}
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": figures}
        yield {"type": "message_stop"}

    def failure(self, error: ApiError) -> Iterator[Event]:
        """Yields the event of a generation that has failed."""
        yield error_body(error.status, error.body["error"]["message"])

    def _stop_sequence(self) -> str | None:
        """The stop sequence that ended the text: what was generated goes on with it where the text ends."""
        stopping = self._request.stopping
        if not (stops := stopping.stop):
            return None
        detokenizer = Detokenizer(self._tokenizer, self._request.prompt, stopping.skip_special_tokens)
        text = "".join(map(detokenizer.push, self._tokens)) + detokenizer.flush()
        end = self._num_characters
        if stopping.include_stop:
            return next((stop for stop in stops if text[:end].endswith(stop)), None)
        return next((stop for stop in stops if text[end:].startswith(stop)), None)

    def _events(self, happenings: Iterable[Happening]) -> Iterator[Event]:
        for happening, block, more in happenings:
            match happening:
                case "begin":
                    block.id = new_call_id()
                    empty = _written(Block(block.kind, block.number, name=block.name, id=block.id))
                    yield {"type": "content_block_start", "index": block.number, "content_block": empty}
                case "more":
                    yield {"type": "content_block_delta", "index": block.number, "delta": _delta(block, more)}
                case "end":
                    self.message["content"].append(_written(block))
                    yield {"type": "content_block_stop", "index": block.number}


def _delta(block: Block, more: str) -> dict[str, Any]:
    match block.kind:
        case "call":
            return {"type": "input_json_delta", "partial_json": more}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": more}
        case _:
            return {"type": "text_delta", "text": more}


def _written(block: Block) -> dict[str, Any]:
    match block.kind:
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block.text)}
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case _:
            return {"type": "text", "text": block.text}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call. What is no JSON object, as in a call that was cut short, is under the key `partial`."""
    if not arguments:
        return {}
    with contextlib.suppress(ValueError):
        found = json.loads(arguments)
        if isinstance(found, dict):
            return found
    return {"partial": arguments}
