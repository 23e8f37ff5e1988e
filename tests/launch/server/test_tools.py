"""Tools in /v1/chat/completions, with the openai package as the client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import pytest

from lp.model.checkpoint import Checkpoint
from tests.launch.server.checkpoint import TEMPLATE as WITHOUT_TOOLS
from tests.launch.server.harness import Running, assert_error
from tests.launch.server.tooling import (
    ARGUMENTS,
    CALL_CLOCK,
    CALL_WEATHER,
    CLOCK,
    PARAMETERS,
    THOUGHTS,
    WEATHER,
    serving_tools,
    writes,
)

BROKEN = {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}
QUESTION = [{"role": "user", "content": "Rome?"}]


@pytest.fixture(scope="module")
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with serving_tools(checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def ask(server: Running):
    client = server.openai()

    def create(text: str | None = None, messages=QUESTION, tools=(WEATHER, CLOCK), **options):
        fields = {"temperature": 0, "messages": messages, "tools": [*tools], **options}
        extra = writes(text) if text is not None else {}
        return client.chat.completions.create(model=server.model, extra_body=extra, **fields)

    return create


def test_a_call(ask) -> None:
    choice = ask(CALL_WEATHER).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert (call.type, call.function.name, call.function.arguments) == ("function", "weather", ARGUMENTS)


def test_reasoning_text_and_parallel_calls(ask) -> None:
    message = ask(f"{THOUGHTS}Wait.\n{CALL_WEATHER}\n{CALL_CLOCK}").choices[0].message
    assert message.reasoning_content == "let me see" and message.content == "Wait."
    assert [call.function.name for call in message.tool_calls] == ["weather", "clock"]
    assert len({call.id for call in message.tool_calls}) == 2
    one = ask(f"{CALL_WEATHER}\n{CALL_CLOCK}", parallel_tool_calls=False).choices[0].message
    assert [call.function.name for call in one.tool_calls] == ["weather"]


def test_a_stream_is_the_whole_in_pieces(ask) -> None:
    text = f"{THOUGHTS}Wait.\n{CALL_WEATHER}\n{CALL_CLOCK}"
    whole = ask(text).choices[0]
    chunks = [chunk.choices[0] for chunk in ask(text, stream=True)]
    deltas = [chunk.delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == whole.message.reasoning_content
    pieces = [call for delta in deltas for call in delta.tool_calls or []]
    for index, call in enumerate(whole.message.tool_calls):
        mine = [piece for piece in pieces if piece.index == index]
        assert mine[0].id and mine[0].function.name == call.function.name
        assert not any(piece.id or piece.function.name for piece in mine[1:])
        assert "".join(piece.function.arguments for piece in mine) == call.function.arguments
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_the_stream_helper_of_the_client(server: Running) -> None:
    with server.openai().chat.completions.stream(
        model=server.model, messages=QUESTION, tools=[WEATHER], extra_body=writes(CALL_WEATHER)
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds and call.function.arguments == ARGUMENTS


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_short(ask, stream: bool) -> None:
    answer = ask(CALL_WEATHER, max_tokens=55, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        arguments = "".join(c.function.arguments for chunk in chunks for c in chunk.delta.tool_calls or [])
        reason = chunks[-1].finish_reason
    else:
        arguments, reason = answer.choices[0].message.tool_calls[0].function.arguments, answer.choices[0].finish_reason
    assert reason == "length" and ARGUMENTS.startswith(arguments) and 0 < len(arguments) < len(ARGUMENTS)


def test_a_required_call_follows_a_schema(ask) -> None:
    for seed in range(3):
        choice = ask(tool_choice="required", temperature=1.5, seed=seed, max_tokens=300, tools=[WEATHER]).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        for call in choice.message.tool_calls:
            assert call.function.name == "weather"
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    one = ask(tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=1, max_tokens=300).choices[0]
    assert len(one.message.tool_calls) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called(ask, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = ask(tool_choice=choice, temperature=1.2, seed=3, max_tokens=200, stream=stream)
    if stream:
        pieces = [piece for chunk in answer for piece in chunk.choices[0].delta.tool_calls or []]
        name, arguments = pieces[0].function.name, "".join(piece.function.arguments for piece in pieces)
    else:
        assert answer.choices[0].finish_reason == "stop"
        function = answer.choices[0].message.tool_calls[0].function
        name, arguments = function.name, function.arguments
    assert name == "weather"
    jsonschema.validate(json.loads(arguments), PARAMETERS)


def test_the_model_is_not_told_of_tools_that_it_must_not_call(ask) -> None:
    without = ask("Hi", tools=[])
    none = ask(CALL_WEATHER, tool_choice="none")
    assert none.choices[0].message.content == CALL_WEATHER and not none.choices[0].message.tool_calls
    assert none.usage.prompt_tokens == without.usage.prompt_tokens < ask("Hi").usage.prompt_tokens


def test_results_of_tools_reach_the_template(server: Running, ask) -> None:
    first = ask(CALL_WEATHER).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    messages = [*QUESTION, first.model_dump(), result]
    assert ask("Sunny.", messages=messages).choices[0].message.content == "Sunny."
    tokens = server.post("/tokenize", messages=messages, tools=[WEATHER, CLOCK]).json()["tokens"]
    rendered = server.post("/detokenize", tokens=tokens).json()["prompt"]
    call = f"<tool_call>weather {ARGUMENTS}</tool_call>"
    assert rendered == f"[weather][clock]<user>Rome?<assistant>{call}<tool>sunny<assistant>"


def test_the_template_may_begin_the_reasoning(server: Running) -> None:
    body = {"messages": QUESTION, "chat_template_kwargs": {"enable_thinking": True}, **writes("hm\n</think>\nYes.")}
    message = server.post("/v1/chat/completions", **body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")


def test_several_choices_have_calls_of_their_own(ask) -> None:
    choices = ask(CALL_WEATHER, n=2).choices
    assert [choice.message.tool_calls[0].function.name for choice in choices] == ["weather"] * 2


def test_a_template_without_tools_gets_them_as_text(checkpoint: Checkpoint) -> None:
    with serving_tools(checkpoint, WITHOUT_TOOLS) as running:
        body = {"messages": QUESTION, "tools": [CLOCK], **writes(CALL_CLOCK)}
        answer = running.post("/v1/chat/completions", **body).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "clock"
        assert answer["usage"]["prompt_tokens"] > 200
        turns = [*QUESTION, answer["choices"][0]["message"], {"role": "tool", "tool_call_id": "1", "content": "noon"}]
        assert running.post("/v1/chat/completions", messages=turns, **writes("Noon.")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": "weather"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function is required"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tools": [CLOCK], "tool_choice": "sometimes"}, 'required or {"type": "function", "function": {"'),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "not among the tools"),
        ({"tools": [BROKEN], "tool_choice": "required"}, "tools: "),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
    ],
)  # fmt: skip
def test_bad_tools(server: Running, fields: dict, word: str) -> None:
    answer = server.post("/v1/chat/completions", **{"messages": QUESTION, "max_tokens": 2, **fields})
    assert_error(answer, 400, word)
