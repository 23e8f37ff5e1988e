"""Calls in JSON text, as it comes."""

from __future__ import annotations

import json
import random

import pytest

from launch.server.tools.call_text import CallText
from launch.server.tools.pieces import Answer, ToolCall, join


def read(text: str, cut: int = 1000, **options) -> Answer:
    calls = CallText(**options)
    pieces = [piece for at in range(0, len(text), cut) for piece in calls.feed(text[at : at + cut])]
    return join([*pieces, *calls.finish()])


@pytest.mark.parametrize("cut", (1, 2, 3, 5, 8, 1000))
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "arguments": {"a": [1, {"b": "}\\""}]}}', [ToolCall("f", '{"a": [1, {"b": "}\\""}]}')]),
        ('{"arguments": {"a": 1}, "name": "f"}', [ToolCall("f", '{"a": 1}')]),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', [ToolCall("f", '{"a": 1}')]),
        ('{"name": "f", "arguments": null, "id": 5}', [ToolCall("f", "{}")]),
        ('{"name": "f", "arguments": {}, "parameters": {"a": 1}}', [ToolCall("f", "{}")]),
        ('{"type": "function", "n": -1.5, "function": {"name": "f", "arguments": {}}}', [ToolCall("f", "{}")]),
        ('{"type": "function", "function": "f", "parameters": {}}', [ToolCall("f", "{}")]),
        ('[{"name": "f"},\n {"name": "g"}]', [ToolCall("f", "{}"), ToolCall("g", "{}")]),
        ('{"name": "f", "arguments": {"a": "two\nlines"}}', [ToolCall("f", '{"a": "two\\nlines"}')]),
        ('{"name": "f", "argu', [ToolCall("f", "")]),
    ],
)
def test_forms_of_calls(text: str, expected: list[ToolCall], cut: int) -> None:
    assert read(text, cut) == Answer(calls=expected)


@pytest.mark.parametrize("cut", (1, 2, 3, 1000))
@pytest.mark.parametrize(
    "text",
    ["", "hello", "{a: 1}", '{"a": 1}', '{"name": 5}', '{"name": ""}', "[1, 2]", '{"name"', '{"a"]', "f[ARGS]{}"],
)
def test_what_is_no_call_is_content(text: str, cut: int) -> None:
    assert read(text, cut) == Answer(text)


def test_unknown_names_and_heads_are_options() -> None:
    text = '{"name": "f", "arguments": {}}'
    assert read(text, names={"g"}) == Answer(text)
    assert read("f[ARGS]{}", has_heads=True) == Answer(calls=[ToolCall("f", "{}")])
    assert read("no call", has_heads=True) == Answer("no call")


def test_random_arguments_are_given_out_as_they_were_written() -> None:
    draw = random.Random(1)
    for _ in range(200):
        calls = [
            ToolCall(f"f{draw.randrange(9)}", json.dumps({"k": _value(draw, 3)})) for _ in range(draw.randint(1, 3))
        ]
        parts = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in calls]
        text = draw.choice(["[{}]", "{}"]).format(draw.choice([", ", ",\n", ";", "\n"]).join(parts))
        assert read(text, draw.randint(1, 9)) == Answer(calls=calls)


def _value(draw: random.Random, depth: int) -> object:
    match draw.randrange(6 if depth else 4):
        case 0:
            return draw.choice([None, True, -1.5e-3, 12])
        case 4:
            return [_value(draw, depth - 1) for _ in range(draw.randrange(3))]
        case 5:
            return {f"k{number}": _value(draw, depth - 1) for number in range(draw.randrange(3))}
        case _:
            return "".join(draw.choice('ab"\\{}[],:é\n ') for _ in range(draw.randrange(6)))
