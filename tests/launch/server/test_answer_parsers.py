"""The parsers find content, reasoning and calls in an answer, however its text is cut."""

from __future__ import annotations

import json
import random

import pytest

from launch.server.answer import Answer, CallPiece, ToolCall, join
from launch.server.answer_parsers import ArgumentsParser, CallText, FirstCallOnly, Parser, TextParser
from launch.server.tools import find_format, generic_format, make_parser

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g"}},
]
F, G = ToolCall("f", '{"a": 1}'), ToolCall("g", "{}")
CUTS = (1, 2, 3, 5, 7, 11, 1000)
# What a chat template of each family contains.
HERMES, MISTRAL, TAGS, GEMMA, LLAMA = (
    "<tool_call> </think>",
    "[TOOL_CALLS]",
    "<function= <parameter=",
    "<|tool_call>",
    "",
)
GEMMA_CALL = '<|tool_call>call:f{a:1,b:<|"|>x<|"|>'
SHIPPED = {
    "start_anchor": "<assistant>",
    "fields": {
        "thinking": {"open": "<t>", "close": "</t>"},
        "tool_calls": {
            "open": "<c>",
            "close": "</c>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}


def parse(parser: Parser, text: str, cut: int = 1000) -> Answer:
    pieces = [piece for at in range(0, len(text), cut) for piece in parser.feed(text[at : at + cut])]
    return join([*pieces, *parser.finish()])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        (HERMES, "Hello <b> there.\n", Answer("Hello <b> there.\n")),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', Answer(calls=[F])),
        (
            HERMES,
            '<think>\nhm </t\n</think>\n\nLook:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
            Answer("Look:", "hm </t", [F, G]),
        ),
        (HERMES, '<tool_call>[{"name": "g"}, {"name": "f", "arguments": {"a": 1}}]</tool_call>', Answer(calls=[G, F])),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a"', Answer(calls=[ToolCall("f", '{"a"')])),
        (HERMES, '<tool_call>\n{"na', Answer('{"na')),
        (HERMES, "<tool_call>none</tool_call>", Answer("none")),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', Answer(calls=[F, G])),
        (MISTRAL, 'So: [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}', Answer("So:", calls=[F, G])),
        (
            TAGS,
            "Now\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n",
            Answer("Now", calls=[F]),
        ),
        (TAGS, "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2", Answer(calls=[F])),
        (GEMMA, f"{GEMMA_CALL}}}<tool_call|>", Answer(calls=[ToolCall("f", '{"a": 1, "b": "x"}')])),
        (GEMMA, f"a{GEMMA_CALL}]<tool_call|>b", Answer('a{a:1,b:<|"|>x<|"|>]b')),
        (GEMMA, f"a{GEMMA_CALL}", Answer('a{a:1,b:<|"|>x<|"|>')),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}', Answer(calls=[F])),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g"}', Answer(calls=[F, G])),
        (LLAMA, '{"name": "other", "parameters": {"a": 1}}', Answer('{"name": "other", "parameters": {"a": 1}}')),
        (LLAMA, '{"city": "Paris"}', Answer('{"city": "Paris"}')),
        (LLAMA, "[1] says {no}", Answer("[1] says {no}")),
        (LLAMA, " <| hello", Answer(" <| hello")),
        (LLAMA, "", Answer()),
        ("</think>", '<think>hm</think>{"name": "f", "parameters": {"a": 1}}', Answer("", "hm", [F])),
    ],
)  # fmt: skip
def test_answers_of_families(template: str, text: str, expected: Answer, cut: int) -> None:
    parser = make_parser(find_format(template, None, with_tools=True), TOOLS, prompt="")
    assert parse(parser, text, cut) == expected


@pytest.mark.parametrize("cut", CUTS)
def test_the_template_may_begin_the_reasoning(cut: int) -> None:
    form = find_format(HERMES, None, with_tools=False)
    assert parse(make_parser(form, [], "<|assistant|><think>\n"), "hm\n</think>\nyes", cut) == Answer("yes", "hm")
    assert parse(make_parser(form, [], "<|assistant|>"), "hm", cut) == Answer("hm")


@pytest.mark.parametrize("cut", CUTS)
def test_a_response_template_of_the_tokenizer_comes_first(cut: int) -> None:
    text = 'yes<c>{"name": "f", "arguments": {"a": 1}}</c><c>{"name": "f", "arguments": {"a'
    form = find_format(MISTRAL, SHIPPED, with_tools=True)
    cut_short = ToolCall("f", '{"a')
    assert parse(make_parser(form, TOOLS, "<user><t>x<assistant><t>"), f"hm</t>{text}", cut) == Answer(
        "yes", "hm", [F, cut_short]
    )
    without = find_format(MISTRAL, SHIPPED, with_tools=False)
    assert parse(make_parser(without, [], "<assistant>"), text, cut) == Answer(text)


def test_without_tools_and_reasoning_nothing_is_parsed() -> None:
    form = find_format("[TOOL_CALLS]", None, with_tools=False)
    assert not form.has_something and isinstance(make_parser(form, [], ""), TextParser)


def test_the_generic_format_is_that_of_hermes() -> None:
    parser = make_parser(generic_format(), TOOLS, "")
    assert parse(parser, 'a <tool_call>{"name": "g"}</tool_call>') == Answer("a", calls=[G])


def test_arguments_come_before_their_call_is_over() -> None:
    parser = make_parser(find_format(HERMES, None, with_tools=True), TOOLS, "")
    assert parser.feed('<tool_call>{"name": "f", "arguments": {"te') == [CallPiece(0, "f", '{"te')]
    assert parser.feed('xt": "abc') == [CallPiece(0, None, 'xt": "abc')]


@pytest.mark.parametrize("cut", CUTS)
def test_forced_arguments(cut: int) -> None:
    assert parse(ArgumentsParser("f"), ' {"a": 1}\n \n', cut) == Answer(calls=[F])
    assert parse(ArgumentsParser("f"), '{"a"', cut) == Answer(calls=[ToolCall("f", '{"a"')])
    assert parse(ArgumentsParser("g"), "", cut) == Answer(calls=[ToolCall("g")])


def test_only_the_first_call_is_kept() -> None:
    parser = FirstCallOnly(make_parser(generic_format(), TOOLS, ""))
    text = '<tool_call>{"name": "g"}</tool_call><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert parse(parser, text) == Answer(calls=[G])


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
