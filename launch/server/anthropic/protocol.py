"""The body of POST /v1/messages, and the chat request that it stands for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from launch.server.anthropic.blocks import text_of, to_messages
from launch.server.bodies import Part, refused
from launch.server.openai.fields import Ignored, Off, Stops
from launch.server.openai.protocol import ChatBody, GenerationBody, chat_of

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
