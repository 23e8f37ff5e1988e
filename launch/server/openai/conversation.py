"""The fields of all bodies that have messages: the conversation, the tools, and how the chat template writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from launch.server.bodies import Body, Part, refused
from launch.server.openai.fields import Off, TextField
from launch.server.openai.tool_fields import Call, Choice, Tool
from launch.server.tools.choice import ToolChoice
from lp.text.chat_template import Rendering

# What chat templates see of a message.
_WRITTEN = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}


class Message(Part):
    """One message of a conversation. What a client or another server has added to it is ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextField = ""
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Off = None
    audio: Off = None
    function_call: Off = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates get it."""
        return {"content": "", **self.model_dump(exclude_none=True, include=_WRITTEN)}


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
    def choice(self) -> ToolChoice:
        """Whether tools are called; without a word of the client, they may be called if there are some."""
        return self.tool_choice or ToolChoice("auto" if self.tools else "none")

    @property
    def allows_parallel(self) -> bool:
        """Whether an answer may have more than one call."""
        return self.parallel_tool_calls is not False

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is told of: none if it must not call any."""
        return [] if self.choice.mode == "none" else [tool.plain() for tool in self.tools or []]

    @model_validator(mode="after")
    def _check_tools(self) -> Conversation:
        names = [tool.function.name for tool in self.tools or []]
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
