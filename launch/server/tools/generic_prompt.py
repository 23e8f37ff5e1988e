"""Tells a model of tools whose chat template knows none: in the system message, and tool messages as plain text.

The notation is that of Hermes, which many models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import meta
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_INSTRUCTIONS = """You can call functions to help with what the user asks for. These are their signatures:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as a JSON object between <tool_call> and </tool_call>:
<tool_call>
{{"name": "the function's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>
The result of a call comes between <tool_response> and </tool_response>. If no function helps, answer without a call."""


def knows_tools(chat_template: str) -> bool:
    """Whether a chat template writes the tools that it is given."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
    try:
        return "tools" in meta.find_undeclared_variables(environment.parse(chat_template))
    except TemplateError:  # an extension of transformers, or a fault that shows when the template is used
        return "tools" in chat_template


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as messages of text alone, the system message of which describes the tools."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=lines)
    if plain and plain[0]["role"] in ("system", "developer"):
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{instructions}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = "".join(f"\n<tool_call>\n{_call(call)}\n</tool_call>" for call in message.get("tool_calls") or ())
    return {"role": message["role"], "content": (content + calls).strip("\n") if calls else content}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
