"""The fields of chat bodies that have to do with tools: what there is to call, and what was called before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from launch.server.bodies import Part, refused
from launch.server.tools.choice import ToolChoice


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
    raise refused('tool_choice must be none, auto, required or {{"type": "function", "function": {{"name": "..."}}}}')


Choice = Annotated[Any, BeforeValidator(_choice)]
