"""The `anthropic` package against /v1/messages, where the server has it."""

from __future__ import annotations

import pytest

from tests.clients.importing import imported

anthropic = imported("anthropic")
QUESTION = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def client(url: str, routes: set[str]):
    if "/v1/messages" not in routes:
        pytest.skip("the server has no /v1/messages")
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


def test_a_message(client, model: str):
    answer = client.messages.create(model=model, messages=QUESTION, max_tokens=16, system="Be brief.", temperature=0)
    assert answer.role == "assistant" and answer.content[0].type == "text" and answer.usage.output_tokens <= 16


def test_a_stream(client, model: str):
    settings = {"model": model, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    whole = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
    assert text == whole.content[0].text
