"""What a tokenizer and its chat template say of tools: what the template is given, and which special tokens count."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from launch.server.tools.choice import ToolChoice
from launch.server.tools.dialect import Dialect
from launch.server.tools.pieces import Answer, ToolCall, join
from tests.launch.server.checkpoint import make_tokenizer

TOOLS = [{"type": "function", "function": {"name": "f"}}]
MISTRAL = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# [TOOL_CALLS] #}"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TURNS = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "b"}]
AUTO = ToolChoice("auto")


def tokenizer_with(template: str | dict[str, str], *special: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer(None)
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    return tokenizer


def test_special_tokens_that_mark_calls_are_kept_and_others_dropped() -> None:
    tokenizer = tokenizer_with(MISTRAL, "[TOOL_CALLS]", "[INST]")
    reading = Dialect(tokenizer).reading(TOOLS, AUTO, True, tokenizer.encode("a"))
    assert reading.kept == {"[TOOL_CALLS]"} and "[INST]" in reading.others
    reader = reading.begin()
    pieces = [*reader.read("So[INST]: ", False), *reader.read('[TOOL_CALLS]f[ARGS]{"a": 1}<|end|>', True)]
    assert join(pieces) == Answer("So:", calls=[ToolCall("f", '{"a": 1}')])


def test_without_tools_no_special_token_is_kept() -> None:
    tokenizer = tokenizer_with(MISTRAL, "[TOOL_CALLS]")
    assert not Dialect(tokenizer).reading([], ToolChoice(), True, tokenizer.encode("a")).kept


def test_templates_get_arguments_as_values_and_whole_tools() -> None:
    messages, tools = Dialect(tokenizer_with(MISTRAL)).write(TURNS, TOOLS)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert tools[0]["function"].keys() == {"name", "description", "parameters"}
    cut_short = {**CALL, "function": {"name": "f", "arguments": '{"a'}}
    messages, _ = Dialect(tokenizer_with(MISTRAL)).write([{**TURNS[0], "tool_calls": [cut_short]}], TOOLS)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"a'


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_other_templates_get_text_alone(tools: list) -> None:
    messages, left = Dialect(tokenizer_with("{{ messages[0].content }}")).write(TURNS, tools)
    assert not left and all(message.keys() == {"role", "content"} for message in messages)
    assert [message["role"] for message in messages][-2:] == ["assistant", "user"]


def test_a_template_of_its_own_for_tools_is_used() -> None:
    templates = {"default": "{{ messages }}", "tool_use": "{{ tools }}{# <tool_call> #}"}
    dialect = Dialect(tokenizer_with(templates))
    assert dialect.write([{"role": "user", "content": "a"}], TOOLS)[1]
    assert dialect.reading(TOOLS, AUTO, True, [1]).form.calls == "marked"
    assert dialect.reading([], ToolChoice(), True, [1]).form.calls == "none"
