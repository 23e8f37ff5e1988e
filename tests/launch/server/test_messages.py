"""/v1/messages. The `anthropic` package itself is tried in tests/clients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from launch.server.anthropic import MessageReply
from launch.server.conversion import Conversion
from launch.server.openai_protocol import ChatBody
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import Checkpoint
from lp.request import Completion
from tests.launch.server.harness import LIMIT_S, Running
from tests.launch.server.tooling import (
    ARGUMENTS,
    CALL_CLOCK,
    CALL_WEATHER,
    PARAMETERS,
    TEMPLATE,
    THOUGHTS,
    serving_tools,
    writes,
)
from tests.lp.text.test_detokenizer import build_byte_fallback_tokenizer

TOOL = {"name": "weather", "description": "The weather", "input_schema": PARAMETERS}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
QUESTION = [{"role": "user", "content": "Rome?"}]


@pytest.fixture(scope="module")
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with serving_tools(checkpoint) as running:
        yield running


def ask(running: Running, text: str | None = None, **fields) -> dict[str, Any]:
    body = {"model": running.model, "messages": QUESTION, "max_tokens": 300, "temperature": 0, **fields}
    answer = running.post("/v1/messages", **{**body, **(writes(text) if text is not None else {})})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(running: Running, text: str, **fields) -> list[dict[str, Any]]:
    body = {"model": running.model, "messages": QUESTION, "max_tokens": 300, "stream": True, **fields, **writes(text)}
    answer = httpx.post(f"{running.url}/v1/messages", json=body, timeout=LIMIT_S)
    blocks = [block.split("\n") for block in answer.text.split("\n\n")[:-1]]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    return events


def test_text(server: Running) -> None:
    answer = ask(
        server, "Sunny.", system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    )
    assert (answer["type"], answer["role"], answer["content"]) == (
        "message",
        "assistant",
        [{"type": "text", "text": "Sunny."}],
    )
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["input_tokens"] > 0 and answer["usage"]["output_tokens"] > 1


def test_a_message_is_what_a_chat_says(server: Running) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *QUESTION]
    chat = server.post("/v1/chat/completions", messages=messages, temperature=0.8, seed=4, max_tokens=20).json()
    content = [{"type": "text", "text": "Rome?", "cache_control": {"type": "ephemeral"}}]
    fields = {"messages": [{"role": "user", "content": content}], "system": "Be brief."}
    answer = ask(server, **fields, temperature=0.8, seed=4, max_tokens=20)
    assert answer["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["stop_reason"] == "max_tokens"
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    counted = server.post("/v1/messages/count_tokens", model=server.model, **fields).json()
    assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}


def test_thoughts_and_calls_are_blocks(server: Running) -> None:
    answer = ask(server, f"{THOUGHTS}Wait.\n{CALL_WEATHER}\n{CALL_CLOCK}", tools=[TOOL, CLOCK])
    thinking, text, call, other = answer["content"]
    assert (thinking["thinking"], text["text"]) == ("let me see", "Wait.")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", json.loads(ARGUMENTS))
    assert other["name"] == "clock" and other["id"] != call["id"] and answer["stop_reason"] == "tool_use"


def test_the_events_come_in_anthropics_order(server: Running) -> None:
    events = events_of(server, f"{THOUGHTS}Wait.\n{CALL_WEATHER}", tools=[TOOL])
    kinds = list(dict.fromkeys((event["type"], event.get("index")) for event in events))
    blocks = [(f"content_block_{happening}", index) for index in range(3) for happening in ("start", "delta", "stop")]
    assert kinds == [("message_start", None), *blocks, ("message_delta", None), ("message_stop", None)]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use"] and starts[2]["input"] == {}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("partial_json", "") for delta in deltas) == ARGUMENTS
    assert "".join(delta.get("text", "") for delta in deltas) == "Wait."
    end = events[-2]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and end["usage"]["output_tokens"] > 1
    assert events[0]["message"]["content"] == [] and events[0]["message"]["usage"]["input_tokens"] > 0


def test_the_stop_sequence_is_named(server: Running) -> None:
    answer = ask(server, "one two three", stop_sequences=["thr", "two"])
    assert answer["content"][0]["text"] == "one "
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")


def test_the_stop_sequence_is_named_where_decoders_drop_a_space(checkpoint: Checkpoint) -> None:
    """Those of SentencePiece drop the space of the first token that they are given."""
    tokenizer = build_byte_fallback_tokenizer()
    tokenizer.chat_template = TEMPLATE
    conversion = Conversion(RequestBuilder(dataclasses.replace(checkpoint, tokenizer=tokenizer)), ["m"], 16, 4)
    body = ChatBody.model_validate({"messages": QUESTION, "max_tokens": 9, "stop": ["xx", "world"]})
    prepared = conversion.prepare(body, None, None)
    tokens = tokenizer.encode("hello world", add_special_tokens=False)
    done = Completion(" hello ", tokens, finish_reason="stop")
    message = MessageReply(prepared, "m", tokenizer).whole({prepared.id: done})
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "world")


def test_choices_of_tools(server: Running) -> None:
    for choice in ({"type": "tool", "name": "weather"}, {"type": "any", "disable_parallel_tool_use": True}):
        answer = ask(server, tools=[TOOL], tool_choice=choice, temperature=1.2, seed=1)
        (block,) = answer["content"]
        assert (block["type"], block["name"], answer["stop_reason"]) == ("tool_use", "weather", "tool_use")
        jsonschema.validate(block["input"], PARAMETERS)
    told = ask(server, CALL_WEATHER, tools=[TOOL], tool_choice={"type": "none"})
    assert told["content"] == [{"type": "text", "text": CALL_WEATHER}]


def test_a_call_that_is_cut_short(server: Running) -> None:
    answer = ask(server, CALL_WEATHER, tools=[TOOL], max_tokens=55)
    (block,) = answer["content"]
    assert answer["stop_reason"] == "max_tokens" and ARGUMENTS.startswith(block["input"]["partial"])


def test_results_of_tools_are_messages(server: Running) -> None:
    call = ask(server, f"{THOUGHTS}{CALL_WEATHER}", tools=[TOOL])["content"]
    result = {"type": "tool_result", "tool_use_id": call[1]["id"], "content": [{"type": "text", "text": "sunny"}]}
    more = [result, {"type": "text", "text": "And?"}]
    messages = [*QUESTION, {"role": "assistant", "content": call}, {"role": "user", "content": more}]
    assert ask(server, "Sunny.", messages=messages, tools=[TOOL])["content"][0]["text"] == "Sunny."
    counted = server.post("/v1/messages/count_tokens", model=server.model, messages=messages, tools=[TOOL]).json()
    written = (
        f"[weather]<user>Rome?<assistant><tool_call>weather {ARGUMENTS}</tool_call><tool>sunny<user>And?<assistant>"
    )
    assert counted["input_tokens"] == len(server.engine.checkpoint.tokenizer.encode(written))


def test_structured_text_and_thinking(server: Running) -> None:
    answer = ask(server, output_config={"format": {"type": "json_schema", "schema": PARAMETERS}})
    jsonschema.validate(json.loads(answer["content"][0]["text"]), PARAMETERS)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert ask(server, "hm</think>Yes.", thinking=thinking)["content"][0] == {
        "type": "thinking",
        "thinking": "hm",
        "signature": "",
    }


def assert_refused(answer: httpx.Response, status: int, kind: str, word: str) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"type", "error"} and body["type"] == "error" and body["error"]["type"] == kind
    assert word in body["error"]["message"], body


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"messages": QUESTION}, "max_tokens is required"),
        ({"max_tokens": 5}, "messages is required"),
        ({"max_tokens": 5, "messages": []}, "messages is empty"),
        (
            {"max_tokens": 5, "messages": QUESTION, "output_config": {"format": {"schema": {"type": "x"}}}},
            "output_config.format: the json_schema cannot be used at #: ",
        ),
        ({"max_tokens": 0, "messages": QUESTION}, "max_tokens"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"max_tokens": 5, "messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"max_tokens": 5, "messages": QUESTION, "tools": [{"type": "bash_2025", "name": "bash"}]}, "bash_2025"),
        ({"max_tokens": 5, "messages": QUESTION, "tools": [{"name": "f"}], "tool_choice": {"type": "tool"}}, "name"),
        ({"max_tokens": 5, "messages": QUESTION, "tool_choice": {"type": "any"}}, "needs tools"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_shape(server: Running, fields: dict, word: str) -> None:
    assert_refused(server.post("/v1/messages", **fields), 400, "invalid_request_error", word)


def test_other_errors_have_it_too(checkpoint: Checkpoint, server: Running) -> None:
    body = {"model": "claude", "messages": QUESTION, "max_tokens": 5}
    assert_refused(server.post("/v1/messages", **body), 404, "not_found_error", "claude")
    assert_refused(httpx.get(f"{server.url}/v1/messages"), 405, "invalid_request_error", "not allowed")
    with serving_tools(checkpoint, api_keys=["one"]) as running:
        del body["model"]
        url = f"{running.url}/v1/messages"
        assert_refused(httpx.post(url, json=body), 401, "authentication_error", "API key")
        assert_refused(httpx.post(url, json=body, headers={"x-api-key": "two"}), 401, "authentication_error", "API key")
        assert httpx.post(url, json=body, headers={"x-api-key": "one"}).status_code == 200
        assert httpx.post(url, json=body, headers={"authorization": "Bearer one"}).status_code == 200


def test_an_error_within_a_stream_is_an_event(checkpoint: Checkpoint) -> None:
    with serving_tools(checkpoint) as running:
        running.gate.error = RuntimeError("a step fails")
        events = events_of(running, "Sunny.")
    assert [event["type"] for event in events] == ["error"]
    assert events[-1]["error"]["type"] == "api_error"
