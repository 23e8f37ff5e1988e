"""What a client's choice of tools means: which tools the model is told of, and to which calls its answer is bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launch.server.tools.call_text import CallText
from launch.server.tools.parsers import ArgumentsParser, Parser

Tool = dict[str, Any]


@dataclass(frozen=True)
class ToolChoice:
    """Whether a model may, must or must not call tools. name: the one function to call, if the mode is `named`."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    name: str = ""

    @property
    def is_forced(self) -> bool:
        """Whether the answer is bound to be a call."""
        return self.mode in ("required", "named")


def schema_of_calls(tools: Sequence[Tool], choice: ToolChoice, allows_parallel: bool) -> dict[str, Any] | None:
    """The JSON Schema that an answer must follow; None for a choice that binds it to nothing.

    A named function's answer is its arguments. If a call is required, it is an array of calls, as in vLLM.
    """
    if not choice.is_forced:
        return None
    if choice.mode == "named":
        return _parameters(next(tool for tool in tools if tool["function"]["name"] == choice.name))
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(tool, number) for number, tool in enumerate(tools)]},
        "$defs": {str(number): _moved(_parameters(tool), number) for number, tool in enumerate(tools)},
    }
    return schema if allows_parallel else {**schema, "maxItems": 1}


def forced_parser(choice: ToolChoice) -> Parser:
    """The parser of an answer that follows `schema_of_calls`."""
    return CallText() if choice.mode == "required" else ArgumentsParser(choice.name)


def _call(tool: Tool, number: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "const": tool["function"]["name"]},
            "arguments": {"$ref": f"#/$defs/{number}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool["function"].get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _moved(schema: Any, number: int) -> Any:
    """A schema whose references to itself are right when it lies under $defs of another one."""
    if isinstance(schema, list):
        return [_moved(value, number) for value in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/{number}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, number)
        for key, value in schema.items()
    }
