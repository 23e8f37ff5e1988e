"""The `openai` package: chat, completions, streams, log-probabilities, errors; responses if the server has them."""

from __future__ import annotations

import json

import pytest

from tests.clients.importing import imported

openai = imported("openai")
QUESTION = [{"role": "user", "content": "Name a colour."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def client(url: str):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def test_models(client, model: str):
    assert next(iter(client.models.list())).id == model


def test_embeddings(client, model: str):
    found = client.embeddings.create(model=model, input=["a colour", "a city"]).data
    assert len(found) == 2 and len(found[0].embedding) == len(found[1].embedding) > 1
    assert abs(sum(number**2 for number in found[0].embedding) - 1) < 1e-3


def test_a_conversation(client, model: str):
    first = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=16, temperature=0)
    said = first.choices[0].message
    assert said.role == "assistant" and first.usage.completion_tokens <= 16
    more = [*QUESTION, said, {"role": "user", "content": "And another?"}]
    second = client.chat.completions.create(model=model, messages=more, max_tokens=16, temperature=0)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_prompt": True, "id_slot": -1, "repeat_penalty": 1.1, "typical_p": 1.0, "mirostat": 0},
        {"keep_alive": "5m", "options": {"num_ctx": 2048, "temperature": 0}},
    ],
    ids=["llama.cpp", "Ollama"],
)
def test_fields_of_other_servers(client, model: str, fields: dict):
    """What is known is done, and the rest is named in a header, as a warning."""
    asked = client.chat.completions.with_raw_response.create(
        model=model, messages=QUESTION, max_tokens=8, temperature=0, extra_body=fields
    )
    assert asked.parse().choices[0].message.role == "assistant"
    ignored = asked.headers["warning"]
    assert all((name in ignored) == (name != "repeat_penalty") for name in fields), ignored


def test_a_stream_is_the_whole_answer_in_pieces(client, model: str):
    settings = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    chunks = [*client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper(client, model: str):
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=12, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot.choices[0]  # the final one is refused if it reached its limit
    assert {"chunk", "content.delta"} <= kinds and final.message.content and final.finish_reason


def test_completions_and_logprobs(client, model: str):
    answer = client.completions.create(model=model, prompt="def area(", max_tokens=8, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == answer.usage.completion_tokens and all(value <= 0 for value in found.token_logprobs)


def test_errors_have_their_classes(client, model: str):
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another-model")
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt="word " * 20_000, max_tokens=5)
    assert raised.value.code == "context_length_exceeded"
    assert "maximum context length is" in str(raised.value)


def test_the_async_client(url: str, model: str):
    import asyncio

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            asking = [
                client.completions.create(model=model, prompt=text, max_tokens=6, temperature=0) for text in "abc"
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*asking)]

    assert len(asyncio.run(ask())) == 3


def test_responses(client, model: str, routes: set[str]):
    if "/v1/responses" not in routes:
        pytest.skip("the server has no /v1/responses")
    answer = client.responses.create(model=model, input="Name a colour.", max_output_tokens=16, temperature=0)
    assert answer.output_text
    with client.responses.stream(model=model, input="Name a colour.", max_output_tokens=16, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == answer.output_text


def test_a_tool_is_called_and_its_result_is_read(client, model: str):
    settings = {"model": model, "max_tokens": 60, "temperature": 0, "tools": [{"type": "function", "function": TOOL}]}
    first = client.chat.completions.create(messages=QUESTION, tool_choice="required", **settings).choices[0]
    (call, *_) = first.message.tool_calls
    assert first.finish_reason == "tool_calls" and call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = client.chat.completions.create(messages=[*QUESTION, first.message, result], **settings)
    assert second.choices[0].finish_reason
    with client.chat.completions.stream(messages=QUESTION, tool_choice="required", **settings) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed[0].function.arguments == call.function.arguments


def test_a_response_calls_a_tool_and_goes_on(client, model: str):
    settings = {"model": model, "max_output_tokens": 60, "temperature": 0, "tools": [{"type": "function", **TOOL}]}
    first = client.responses.create(input="Rome?", tool_choice="required", **settings)
    call = first.output[0]
    assert call.type == "function_call" and json.loads(call.arguments).keys() == {"city"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(input=[result], previous_response_id=first.id, **settings)
    assert second.usage.input_tokens > first.usage.input_tokens
    with client.responses.stream(input="Rome?", tool_choice="required", **settings) as stream:
        assert stream.get_final_response().output[0].arguments == call.arguments
