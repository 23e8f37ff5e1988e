"""Pydantic types for the fields of OpenAI's API.

A field that allows several shapes of a value is converted to one shape. A field that this server does not support is
refused unless its value changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from launch.server.bodies import is_off, refused

MOST_STOPS = 16
LONGEST_STOP = 256


def _must_be_off(value: Any, info: ValidationInfo) -> Any:
    if is_off(value):
        return value
    raise refused("{field} is not supported by this server; leave it out", field=info.field_name)


def _at_least_one(value: int | None, info: ValidationInfo) -> int | None:
    if value is None or value >= 1:
        return value
    raise refused("{field}={value} is out of range: it must be at least 1", field=info.field_name, value=value)


def _minus_one_is_unset(value: int | None) -> int | None:
    return None if value == -1 else value


def _stops(value: Any) -> Any:
    """Converts None, a string or a list of strings to a list."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refused("stop must be a string or a list of strings")
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise refused(
            "stop takes at most {most} strings of at most {longest} characters", most=MOST_STOPS, longest=LONGEST_STOP
        )
    return stops


def _prompts(value: Any) -> Any:
    """Converts a string, token ids, or a list of either to a list of prompts, each a string or token ids."""
    is_one = isinstance(value, str) or not (isinstance(value, list) and value and isinstance(value[0], str | list))
    prompts = [value] if is_one else value
    if all(_is_prompt(prompt) for prompt in prompts):
        return prompts
    raise refused("prompt must be a string or a list of token ids, or a list of such prompts")


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value))


def _text(value: Any) -> Any:
    """Takes None, a string or a list of text parts, and joins them to one string."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise refused("content must be a string or a list of text parts; this server reads text alone")
    return "".join(part["text"] for part in parts)


def _only_text_modality(value: Any) -> Any:
    if value in (None, ["text"]):
        return None
    raise refused('modalities must be ["text"]; this server writes text alone')


def _no_function_call(value: Any) -> Any:
    if value in (None, "none", "auto"):
        return None
    raise refused("function_call is not supported by this server; use tools and tool_choice")


Off = Annotated[Any, AfterValidator(_must_be_off)]
AtLeastOne = Annotated[int | None, AfterValidator(_at_least_one)]
Seed = Annotated[int | None, AfterValidator(_minus_one_is_unset)]
Stops = Annotated[list[str], BeforeValidator(_stops)]
Prompts = Annotated[Any, BeforeValidator(_prompts)]
TextField = Annotated[str, BeforeValidator(_text)]
OnlyTextModality = Annotated[Any, BeforeValidator(_only_text_modality)]
NoFunctionCall = Annotated[Any, BeforeValidator(_no_function_call)]
Ignored = Any
