"""Turns messages whose content is blocks to the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from launch.server.bodies import refused

Block = dict[str, Any]


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
            raise refused("{where} must hold text alone; this server reads nothing else", where=where)
    return "\n".join(block["text"] for block in content)


def _assistant(blocks: list[Block], where: str) -> dict[str, Any]:
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


def _user(role: str, blocks: list[Block], where: str) -> list[dict[str, Any]]:
    results = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text_of(block.get("content"), where)}
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    texts = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": role, "content": text_of(texts, where)}] if texts or not results else [])]
