"""The schema that a choice of tools binds an answer to, and the prompt for templates that know no tools."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from launch.server.tools.choice import ToolChoice, schema_of_calls
from launch.server.tools.generic_prompt import knows_tools, with_tools

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
