"""Pydantic types for the fields of OpenAI's API.

A field that allows several shapes of a value is converted to one shape. A field that this server does not support is
refused unless its value changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from launch.server.bodies import refused

MOST_STOPS = 16
LONGEST_STOP = 256


def _must_be_off(value: Any, info: ValidationInfo) -> Any:
    if value in (None, False, "", [], {}):
        return value
    raise refused("{field} is not supported by this server; leave it out", field=info.field_name)


def _must_be_one(value: int | None, info: ValidationInfo) -> int | None:
    if value in (None, 1):
        return value
    raise refused(
        "{field}={value} is not supported: a request gets one choice; leave it out or send several requests",
        field=info.field_name,
        value=value,
    )


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


def _prompt(value: Any) -> Any:
    """Takes a string or token ids, or a list with exactly one of these, and drops the outer list."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise refused("prompt holds {number} prompts; send one prompt a request", number=len(value))
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise refused("prompt must be a string or a list of token ids")


def _text(value: Any) -> Any:
    """Takes None, a string or a list of text parts, and joins them to one string."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise refused("content must be a string or a list of text parts; this server reads text alone")
    return "".join(part["text"] for part in parts)


def _only_text(value: Any) -> Any:
    if value in (None, {"type": "text"}):
        return None
    raise refused('response_format must be {{"type": "text"}}; other formats are not supported')


def _only_text_modality(value: Any) -> Any:
    if value in (None, ["text"]):
        return None
    raise refused('modalities must be ["text"]; this server writes text alone')


def _no_tool_choice(value: Any) -> Any:
    if value in (None, "none", "auto"):
        return None
    raise refused("tool_choice must be none: tools are not supported by this server")


Off = Annotated[Any, AfterValidator(_must_be_off)]
One = Annotated[int | None, AfterValidator(_must_be_one)]
Stops = Annotated[list[str], BeforeValidator(_stops)]
PromptField = Annotated[Any, BeforeValidator(_prompt)]
TextField = Annotated[str, BeforeValidator(_text)]
OnlyText = Annotated[Any, BeforeValidator(_only_text)]
OnlyTextModality = Annotated[Any, BeforeValidator(_only_text_modality)]
NoToolChoice = Annotated[Any, BeforeValidator(_no_tool_choice)]
Ignored = Any
