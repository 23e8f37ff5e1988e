"""Turns the items of a response's input and output to the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launch.server.bodies import refused

Item = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def to_messages(items: str | Iterable[Item]) -> list[Item]:
    """The messages that a response's input, or the output of an earlier one, stands for.

    Reasoning, an answer and calls that follow each other become one message of the assistant. Raises a refusal for an
    item that this server does not know.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Item] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise refused("input[{number}] must be an object", number=number)
        _add(messages, item, number)
    return messages


def _add(messages: list[Item], item: Item, number: int) -> None:
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            message = _assistant(messages)
            message["content"] += _text(item.get("content"), number)
        case "message":
            messages.append({"role": item.get("role"), "content": _text(item.get("content"), number)})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _text(item.get("output"), number)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":
            thoughts = _text(item.get("content") or item.get("summary"), number)
            messages.append({"role": "assistant", "content": "", "reasoning_content": thoughts})
        case other:
            raise refused(
                "input[{number}] is of the type {other}, which this server does not know", number=number, other=other
            )


def _assistant(messages: list[Item]) -> Item:
    """The message of the assistant that an item belongs to: the last one, or a new one.

    A second answer after calls is a message of its own.
    """
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in _TEXTS or not isinstance(part.get("text"), str):
            raise refused("input[{number}] must hold texts alone; this server reads nothing else", number=number)
    return "".join(part["text"] for part in parts)
