"""/v1/responses, with the openai package as the client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import jsonschema
import openai
import pytest

from launch.server.responses import to_messages
from lp.model.checkpoint import Checkpoint
from tests.launch.server.harness import LIMIT_S, Running, assert_error
from tests.launch.server.tooling import (
    ARGUMENTS,
    CALL_CLOCK,
    CALL_WEATHER,
    PARAMETERS,
    THOUGHTS,
    WEATHER,
    serving_tools,
    writes,
)

TOOL = {"type": "function", **WEATHER["function"], "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(scope="module")
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with serving_tools(checkpoint, max_stored_responses=4) as running:
        yield running


@pytest.fixture(scope="module")
def ask(server: Running):
    client = server.openai()

    def create(said: str | None = None, **options):
        extra = writes(said) if said is not None else {}
        return client.responses.create(**{"model": server.model, "input": "Rome?", "extra_body": extra, **options})

    return create


def test_text(ask) -> None:
    answer = ask("Sunny.", instructions="Be brief.", metadata={"a": "b"})
    assert answer.output_text == "Sunny." and answer.status == "completed" and answer.id.startswith("resp_")
    assert [item.type for item in answer.output] == ["message"]
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens > 1


def test_a_response_is_what_a_chat_says(server: Running, ask) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome?"}]
    body = {"messages": messages, "temperature": 0.8, "seed": 4, "max_tokens": 20}
    chat = server.post("/v1/chat/completions", **body).json()
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Rome?"}]}]
    answer = ask(input=parts, instructions="Be brief.", temperature=0.8, max_output_tokens=20, extra_body={"seed": 4})
    assert answer.output_text == chat["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"


def test_reasoning_and_calls_are_items(ask) -> None:
    answer = ask(f"{THOUGHTS}Wait.\n{CALL_WEATHER}\n{CALL_CLOCK}", tools=[TOOL, CLOCK])
    reasoning, message, call, other = answer.output
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert reasoning.content[0].text == "let me see" and message.content[0].text == "Wait."
    assert (call.name, call.arguments, other.name) == ("weather", ARGUMENTS, "clock") and call.call_id != other.call_id


def test_the_events_come_in_openais_order(server: Running) -> None:
    body = {"input": "Rome?", "stream": True, "tools": [TOOL], **writes(f"{THOUGHTS}Wait.\n{CALL_WEATHER}")}
    answer = httpx.post(f"{server.url}/v1/responses", json=body, timeout=LIMIT_S)
    blocks = [block.split("\n") for block in answer.text.split("\n\n")[:-1]]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(zip(kinds, [event.get("output_index") for event in events], strict=True))) == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("completed", None),
    ]
    arguments = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(arguments) == ARGUMENTS and len(arguments) > 1
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done and events[0]["response"]["output"] == []


def test_the_stream_helper_of_the_client(server: Running) -> None:
    with server.openai().responses.stream(
        model=server.model, input="Rome?", tools=[TOOL], extra_body=writes(f"Wait.\n{CALL_WEATHER}")
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Wait." and final.output[1].arguments == ARGUMENTS


def test_a_required_call(ask) -> None:
    answer = ask(tools=[TOOL], tool_choice={"type": "function", "name": "weather"}, max_output_tokens=200)
    jsonschema.validate(json.loads(answer.output[0].arguments), PARAMETERS)
    required = ask(tools=[TOOL], tool_choice="required", max_output_tokens=300, parallel_tool_calls=False)
    assert [item.name for item in required.output] == ["weather"]


def test_structured_text(ask) -> None:
    form = {"type": "json_schema", "name": "place", "schema": PARAMETERS, "strict": True}
    answer = ask(text={"format": form}, max_output_tokens=200, temperature=1.2)
    jsonschema.validate(json.loads(answer.output_text), PARAMETERS)
    assert answer.text.format.name == "place"


def test_log_probabilities(ask) -> None:
    answer = ask(max_output_tokens=6, top_logprobs=2, include=["message.output_text.logprobs"], temperature=0)
    logprobs = answer.output[0].content[0].logprobs
    assert len(logprobs) == 6 and all(len(one.top_logprobs) == 2 for one in logprobs)


def test_a_conversation_goes_on_by_its_last_response(server: Running, ask) -> None:
    first = ask(CALL_WEATHER, tools=[TOOL], instructions="Be brief.")
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    by_id = ask("Sunny.", input=[result], previous_response_id=first.id, tools=[TOOL])
    items = [{"role": "user", "content": "Rome?"}, *(item.model_dump() for item in first.output), result]
    by_items = ask("Sunny.", input=items, tools=[TOOL], store=False)
    assert by_id.usage.input_tokens == by_items.usage.input_tokens  # the instructions are those of one response alone
    third = ask("Bye.", input="And?", previous_response_id=by_id.id)
    assert third.usage.input_tokens > by_id.usage.input_tokens and third.previous_response_id == by_id.id


def test_responses_are_kept_until_there_are_too_many(server: Running, ask) -> None:
    client = server.openai()
    first = ask("One.")
    assert client.responses.retrieve(first.id).output_text == "One."
    unkept = ask("Two.", store=False)
    with pytest.raises(openai.NotFoundError, match="store=false"):
        client.responses.retrieve(unkept.id)
    others = [ask("More.") for _ in range(4)]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="is not kept here"):
        ask("More.", previous_response_id=first.id)
    assert client.responses.retrieve(others[0].id).id == others[0].id
    client.responses.delete(others[0].id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(others[0].id)


def test_responses_belong_to_their_key(checkpoint: Checkpoint) -> None:
    with serving_tools(checkpoint, api_keys=["one", "two"]) as running:
        answer = running.openai(api_key="one").responses.create(model=running.model, input="a", max_output_tokens=2)
        assert running.openai(api_key="one").responses.retrieve(answer.id).id == answer.id
        with pytest.raises(openai.NotFoundError):
            running.openai(api_key="two").responses.retrieve(answer.id)
        with pytest.raises(openai.AuthenticationError):
            running.openai(api_key="three").responses.retrieve(answer.id)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["input is required"]),
        ({"input": 5}, ["input"]),
        ({"input": []}, ["input is empty"]),
        ({"input": ["a"]}, ["input[0] must be an object"]),
        ({"input": [{"type": "item_reference", "id": "x"}]}, ["input[0]", "item_reference"]),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, ["input[0]", "texts alone"]),
        ({"input": [{"role": "robot", "content": "a"}]}, ["role"]),
        ({"input": "a", "tools": [{"type": "web_search"}]}, ["tools[0]", "web_search"]),
        ({"input": "a", "background": True}, ["background"]),
        ({"input": "a", "conversation": "conv_1"}, ["conversation"]),
        ({"input": "a", "previous_response_id": "resp_1"}, ["resp_1", "not kept"]),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, ["text.format", "json_schema"]),
        ({"input": "a", "text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, ["text.format: ", "#"]),
        ({"input": "a", "temperature": -1}, ["temperature"]),
        ({"input": "a", "max_output_tokens": 0}, ["max_output_tokens=0"]),
    ],
)  # fmt: skip
def test_bad_bodies(server: Running, fields: dict, words: list[str]) -> None:
    assert_error(server.post("/v1/responses", **fields), 400, *words)


def test_an_answer_after_calls_is_a_message_of_its_own() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]}
    before, after = to_messages([said, call]), to_messages([call, said])
    assert [(message["content"], len(message.get("tool_calls", ()))) for message in before] == [("Wait.", 1)]
    assert [(message["content"], len(message.get("tool_calls", ()))) for message in after] == [("", 1), ("Wait.", 0)]
