"""The `anthropic` package against /v1/messages."""

from __future__ import annotations

import pytest

from tests.clients.importing import imported

anthropic = imported("anthropic")
QUESTION = [{"role": "user", "content": "Name a colour."}]
GREEDY = {"temperature": 0}  # newer versions of the package have no parameter for it
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "The weather of a city", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def client(url: str):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


def test_a_message(client, model: str):
    answer = client.messages.create(
        model=model, messages=QUESTION, max_tokens=16, system="Be brief.", extra_body=GREEDY
    )
    assert answer.role == "assistant" and answer.content[0].type == "text" and answer.usage.output_tokens <= 16


def test_a_stream(client, model: str):
    settings = {"model": model, "messages": QUESTION, "max_tokens": 16, "extra_body": GREEDY}
    whole = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
    assert text == whole.content[0].text


def test_a_tool_is_called_and_its_result_is_read(client, model: str):
    settings = {"model": model, "max_tokens": 60, "tools": [TOOL], "extra_body": GREEDY}
    first = client.messages.create(messages=QUESTION, tool_choice={"type": "any"}, **settings)
    call = first.content[0]
    assert (call.type, call.name, first.stop_reason) == ("tool_use", "weather", "tool_use")
    assert call.input.keys() == {"city"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, **settings).stop_reason
    with client.messages.stream(messages=QUESTION, tool_choice={"type": "any"}, **settings) as stream:
        assert stream.get_final_message().content[0].input == call.input


def test_tokens_are_counted(client, model: str):
    counted = client.messages.count_tokens(model=model, messages=QUESTION).input_tokens
    answer = client.messages.create(model=model, messages=QUESTION, max_tokens=1)
    assert counted == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_errors_have_their_classes(client, model: str):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="another-model", messages=QUESTION, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=model, messages=QUESTION, max_tokens=5, tool_choice={"type": "any"})
