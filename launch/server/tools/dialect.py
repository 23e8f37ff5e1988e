"""How one model speaks of tools: what its chat template is given, and how its answers are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from launch.server.tools.choice import ToolChoice
from launch.server.tools.formats import Format, find_format, generic_format
from launch.server.tools.generic_prompt import knows_tools, with_tools
from launch.server.tools.parsers import PYTHON_TAG
from launch.server.tools.reader import Reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Tokens at the end of the prompt in which the beginning of the answer is looked for.
_END_TOKENS = 256

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[dict[str, Any]]


class Dialect:
    """What the tokenizer of a model and its chat template say of tools and reasoning."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer
        self._specials = frozenset(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._knows_tools = lru_cache(4)(knows_tools)

    def write(self, messages: Messages, tools: Tools) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The messages and tools for the chat template. One that knows no tools gets them as text in the messages."""
        if self._template_knows(tools):
            return [_for_template(message) for message in messages], [_complete(tool) for tool in tools]
        if tools or any(message.get("tool_calls") or message["role"] == "tool" for message in messages):
            return with_tools([_for_template(message) for message in messages], tools), []
        return [dict(message) for message in messages], []

    def reading(self, tools: Tools, choice: ToolChoice, allows_parallel: bool, prompt: Sequence[int]) -> Reading:
        """How the answers to a prompt are read. tools: those that the model was told of. prompt: its tokens."""
        form = self._format(tools)
        if not form.has_something and not choice.is_forced:
            return Reading(form)
        marks = _marks(form)
        kept = frozenset(token for token in self._specials if token in marks)
        end = str(self._tokenizer.decode(list(prompt[-_END_TOKENS:]), skip_special_tokens=False))
        return Reading(form, list(tools), choice, allows_parallel, end, kept, self._specials - kept)

    def _format(self, tools: Tools) -> Format:
        if tools and not self._template_knows(tools):
            return generic_format()
        response_template = getattr(self._tokenizer, "response_template", None)
        return find_format(self._template(tools), response_template, bool(tools))

    def _template_knows(self, tools: Tools) -> bool:
        return self._knows_tools(self._template(tools))

    def _template(self, tools: Tools) -> str:
        """The source of the chat template; some tokenizers have one of its own for tools. Empty if there is none."""
        if not self._tokenizer.chat_template:
            return ""
        return self._tokenizer.get_chat_template(tools=list(tools) or None)


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as values, as chat templates want them."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": _value(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _value(arguments: Any) -> Any:
    """The value of JSON text; what is no JSON, as in a call that was cut short, stays a text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _complete(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the keys that chat templates read without asking."""
    usual = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**usual, **tool["function"]}}


def _marks(form: Format) -> str:
    """All marks of a format, as one text."""
    fields = (form.template or {}).get("fields", {})
    keys = ("open", "close", "open_pattern", "close_pattern")
    marks = json.dumps([[field.get(key) for key in keys] for field in fields.values()], ensure_ascii=False)
    unescaped = re.sub(r"\\+(.)", r"\1", marks)
    return unescaped + (PYTHON_TAG if form.calls == "bare" else "")
