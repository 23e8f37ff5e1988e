"""What a model is given of tools, how its answers are read, and to which calls they are bound."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from launch.server.answer import Answer, ToolCall, join
from launch.server.tools import Dialect, ToolChoice, knows_tools, schema_of_calls, with_tools
from tests.launch.server.checkpoint import make_tokenizer

ONE_TOOL = [{"type": "function", "function": {"name": "f"}}]
MISTRAL = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# [TOOL_CALLS] #}"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TURNS = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "b"}]
AUTO = ToolChoice("auto")
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {"Node": NODE},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": TREE}},
    {"type": "function", "function": {"name": "g", "description": "does g"}},
]
CALL_F = {"name": "f", "arguments": {"root": {"next": {"next": None}}}}
CALL_G = {"name": "g", "arguments": {}}


def tokenizer_with(template: str | dict[str, str], *special: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer(None)
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    return tokenizer


def test_special_tokens_that_mark_calls_are_kept_and_others_dropped() -> None:
    tokenizer = tokenizer_with(MISTRAL, "[TOOL_CALLS]", "[INST]")
    reading = Dialect(tokenizer).reading(ONE_TOOL, AUTO, True, tokenizer.encode("a"))
    assert reading.kept == {"[TOOL_CALLS]"} and "[INST]" in reading.others
    reader = reading.begin()
    pieces = [*reader.read("So[INST]: ", False), *reader.read('[TOOL_CALLS]f[ARGS]{"a": 1}<|end|>', True)]
    assert join(pieces) == Answer("So:", calls=[ToolCall("f", '{"a": 1}')])


def test_without_tools_no_special_token_is_kept() -> None:
    tokenizer = tokenizer_with(MISTRAL, "[TOOL_CALLS]")
    assert not Dialect(tokenizer).reading([], ToolChoice(), True, tokenizer.encode("a")).kept


def test_templates_get_arguments_as_values_and_whole_tools() -> None:
    messages, tools = Dialect(tokenizer_with(MISTRAL)).write(TURNS, ONE_TOOL)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert tools[0]["function"].keys() == {"name", "description", "parameters"}
    cut_short = {**CALL, "function": {"name": "f", "arguments": '{"a'}}
    messages, _ = Dialect(tokenizer_with(MISTRAL)).write([{**TURNS[0], "tool_calls": [cut_short]}], ONE_TOOL)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"a'


@pytest.mark.parametrize("tools", [ONE_TOOL, []])
def test_other_templates_get_text_alone(tools: list) -> None:
    messages, left = Dialect(tokenizer_with("{{ messages[0].content }}")).write(TURNS, tools)
    assert not left and all(message.keys() == {"role", "content"} for message in messages)
    assert [message["role"] for message in messages][-2:] == ["assistant", "user"]


def test_a_template_of_its_own_for_tools_is_used() -> None:
    templates = {"default": "{{ messages }}", "tool_use": "{{ tools }}{# <tool_call> #}"}
    dialect = Dialect(tokenizer_with(templates))
    assert dialect.write([{"role": "user", "content": "a"}], ONE_TOOL)[1]
    assert dialect.reading(ONE_TOOL, AUTO, True, [1]).form.calls == "marked"
    assert dialect.reading([], ToolChoice(), True, [1]).form.calls == "none"


def fits(value: Any, schema: dict) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_free_choices_bind_to_nothing(choice) -> None:
    assert schema_of_calls(TOOLS, ToolChoice(choice), allows_parallel=True) is None


def test_required_binds_to_calls_of_any_of_the_functions() -> None:
    schema = schema_of_calls(TOOLS, ToolChoice("required"), allows_parallel=True)
    assert schema is not None
    jsonschema.Draft202012Validator.check_schema(schema)
    assert fits([CALL_F], schema) and fits([CALL_G, CALL_F], schema)
    assert not fits([], schema) and not fits(CALL_G, schema)
    assert not fits([{"name": "h", "arguments": {}}], schema) and not fits([{"name": "g"}], schema)
    assert not fits([{"name": "f", "arguments": {"root": {"next": 5}}}], schema)


def test_one_call_where_parallel_ones_are_not_wanted() -> None:
    schema = schema_of_calls(TOOLS, ToolChoice("required"), allows_parallel=False)
    assert schema and fits([CALL_G], schema) and not fits([CALL_G, CALL_F], schema)


def test_a_named_function_binds_to_its_arguments() -> None:
    schema = schema_of_calls(TOOLS, ToolChoice("named", "f"), allows_parallel=True)
    assert schema and fits(CALL_F["arguments"], schema) and not fits({"root": 1}, schema)
    assert fits({}, schema_of_calls(TOOLS, ToolChoice("named", "g"), allows_parallel=True) or {})


def test_whether_a_template_knows_tools() -> None:
    assert knows_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not knows_tools("{{ messages[0].content }} uses tools")
    assert knows_tools("{% generation %}{{ tools }}{% endgeneration %}")


def test_the_generic_prompt_is_in_the_system_message() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "g?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": CALL_G}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    system, user, assistant, tool = with_tools(messages, TOOLS)
    assert system["content"].startswith("Be brief.\n\n") and '"does g"' in system["content"]
    assert user == messages[1]
    assert assistant == {"role": "assistant", "content": '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'}
    assert tool == {"role": "user", "content": "<tool_response>\n42\n</tool_response>"}
    assert [message["role"] for message in with_tools(messages[1:2], TOOLS)] == ["system", "user"]
    assert with_tools(messages[:2], []) == messages[:2]
