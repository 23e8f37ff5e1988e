"""The body of POST /v1/responses, and the chat request that it stands for."""

from __future__ import annotations

from typing import Any

from launch.server.bodies import Part, refused
from launch.server.openai.fields import Ignored, Off
from launch.server.openai.protocol import ChatBody, GenerationBody, chat_of
from launch.server.responses.items import Item, to_messages

LOGPROBS = "message.output_text.logprobs"
# Fields of a chat request that mean something else in a response, or are made from other fields.
_OWN_FIELDS = {"stream_options", "metadata", "store", "n"}


class TextSettings(Part):
    """How the answer's text is written. format: its structure, as in `response_format` but flat."""

    format: dict[str, Any] | None = None
    verbosity: Ignored = None


class ResponsesBody(GenerationBody):
    """The body of POST /v1/responses, with the extensions that the other routes have as well."""

    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    text: TextSettings | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    n: Off = None
    lookahead_trace: Off = None
    background: Off = None
    conversation: Off = None
    prompt: Off = None
    reasoning: Ignored = None
    truncation: Ignored = None
    max_tool_calls: Ignored = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_output_tokens if self.max_output_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        wanted = self.top_logprobs or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None


def to_chat(body: ResponsesBody, earlier: list[Item]) -> ChatBody:
    """The chat request that a response's body stands for.

    earlier: messages of the conversation that it continues, without the instructions that they came with. Raises
    pydantic's ValidationError, and refusals, for what cannot be used.
    """
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    given = {
        "messages": [*system, *earlier, *to_messages(body.input)],
        "max_tokens": body.most_tokens,
        "logprobs": body.num_logprobs is not None,
        "top_logprobs": body.num_logprobs,
        "tools": _tools(body.tools or []) or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text.format if body.text else None) or body.response_format,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    return chat_of(body, _OWN_FIELDS, given)


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise refused(
                "tools[{number}] is of the type {kind}; this server knows functions alone",
                number=number,
                kind=str(tool.get("type"))[:50],
            )
    keys = ("name", "description", "parameters", "strict")
    return [
        {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}
        for tool in tools
    ]


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
