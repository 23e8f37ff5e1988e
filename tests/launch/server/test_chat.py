"""/v1/chat/completions, with the openai package as the client."""

from __future__ import annotations

import dataclasses

import pytest

from lp import Engine, Sampling, Stopping
from tests.launch.server.checkpoint import make_tokenizer
from tests.launch.server.harness import Running, assert_error, serving

MESSAGES = [{"role": "system", "content": "Answer in Python."}, {"role": "user", "content": "fibonacci"}]
RENDERED = "<system>Answer in Python.\n<user>fibonacci\n<assistant>"


@pytest.fixture(scope="module")
def ask(shared: Running):
    client = shared.openai()

    def create(messages=MESSAGES, **options):
        return client.chat.completions.create(model=shared.model, messages=messages, **{"temperature": 0, **options})

    return create


def test_text_continues_the_rendered_template(shared: Running, ask):
    answer = ask(max_completion_tokens=20)
    reference = Engine(shared.engine.checkpoint).generate(
        RENDERED, sampling=Sampling(temperature=0), stopping=Stopping(20)
    )
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    message = answer.choices[0].message
    assert (message.role, message.content, message.refusal) == ("assistant", reference.text, None)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.lookahead["tokens_per_step"] >= 1


def test_text_parts_and_previous_answers(ask):
    parts = [{"type": "text", "text": "fibo"}, {"type": "text", "text": "nacci"}]
    whole = ask(max_tokens=8)
    assert ask([MESSAGES[0], {"role": "user", "content": parts}], max_tokens=8).choices[0] == whole.choices[0]
    again = [*MESSAGES, whole.choices[0].message.model_dump(), {"role": "user", "content": "again"}]
    assert ask(again, max_tokens=8).choices[0].message.content


def test_an_image_is_refused_by_its_name(shared: Running):
    parts = [
        {"type": "text", "text": "fibo"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    answer = shared.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=2)
    assert_error(answer, 400, "image_url")


def test_streaming_equals_whole(ask):
    whole = ask(max_tokens=24, seed=4, temperature=0.8)
    chunks = list(ask(max_tokens=24, seed=4, temperature=0.8, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant" and all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def test_logprobs(ask):
    options = {"max_tokens": 12, "logprobs": True, "top_logprobs": 2, "temperature": 0.8, "seed": 4}
    content = ask(**options).choices[0].logprobs.content
    assert len(content) == 12
    for token in content:
        assert bytes(token.bytes).decode(errors="replace") and token.logprob <= 0
        assert len(token.top_logprobs) == 2 and token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
    streamed = [
        token
        for chunk in ask(**options, stream=True)
        for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [token.token for token in streamed] == [token.token for token in content]
    assert ask(max_tokens=1, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_the_bytes_of_all_tokens_are_the_text(ask):
    choice = ask(max_tokens=60, logprobs=True, temperature=1.5, seed=1, extra_body={"ignore_eos": True}).choices[0]
    named = [token for token in choice.logprobs.content if token.token != "<|end|>"]
    data = b"".join(bytes(token.bytes) for token in named)
    assert "\ufffd" in choice.message.content, "the test needs bytes that are not characters"
    assert data.decode(errors="replace").replace("\ufffd", "") == choice.message.content.replace("\ufffd", "")


def test_max_completion_tokens_wins_and_the_default_is_all_room(shared: Running, ask):
    assert ask(max_completion_tokens=3, max_tokens=9).usage.completion_tokens == 3
    answer = ask(extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == shared.engine.checkpoint.model.max_length


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("modalities", ["audio"]),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "a"}]),
        ("echo", True),
    ],
)
def test_what_would_change_the_output_is_refused(shared: Running, field: str, value):
    answer = shared.post("/v1/chat/completions", messages=MESSAGES, max_tokens=2, **{field: value})
    assert_error(answer, 400, field, param=field)


def test_harmless_fields_are_ignored(ask):
    harmless = {
        "user": "a",
        "metadata": {"b": "c"},
        "store": False,
        "parallel_tool_calls": True,
        "modalities": ["text"],
    }
    answer = ask(max_tokens=2, response_format={"type": "text"}, tools=[], tool_choice="none", **harmless)
    assert answer.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role is required"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "text parts"),
        ([{"role": "user", "content": 5}], "content"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}], "system must come first"),
    ],
)
def test_bad_messages(shared: Running, messages, word: str):
    answer = shared.post("/v1/chat/completions", messages=messages, max_tokens=2)
    assert_error(answer, 400, word)
    shared.assert_serves()


def test_top_logprobs_without_logprobs(shared: Running):
    answer = shared.post("/v1/chat/completions", messages=MESSAGES, top_logprobs=2)
    assert_error(answer, 400, "top_logprobs", param="top_logprobs")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].content + 1 }}", "fails on these messages (TypeError: "),
        ("{{ messages[9].content.x }}", "refuses these messages"),
        ("{% for message in messages %}", "refuses these messages"),
        ("{{ 1 // 0 }}", "fails on these messages (ZeroDivisionError: "),
    ],
)
def test_a_template_that_raises(checkpoint, template: str, reason: str):
    broken = dataclasses.replace(checkpoint, tokenizer=make_tokenizer(chat_template=template))
    with serving(broken) as running:
        answer = running.post("/v1/chat/completions", messages=MESSAGES, max_tokens=2)
        assert_error(answer, 400, reason, param="messages")
        running.assert_serves()


def test_a_model_without_a_template(checkpoint):
    without = dataclasses.replace(checkpoint, tokenizer=make_tokenizer(chat_template=None))
    with serving(without) as running:
        answer = running.post("/v1/chat/completions", messages=MESSAGES, max_tokens=2)
        assert_error(answer, 400, "no chat template", "/v1/completions", code="no_chat_template", param="messages")
        running.assert_serves()
