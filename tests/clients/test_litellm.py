"""LiteLLM against a server with OpenAI's API: conversations of several turns, streams, its vLLM provider."""

from __future__ import annotations

import pytest

from tests.clients.importing import imported

litellm = imported("litellm")


@pytest.fixture(scope="module", params=["openai", "hosted_vllm"])
def ask(request: pytest.FixtureRequest, url: str, model: str):
    def completion(messages: list, **settings):
        return litellm.completion(
            model=f"{request.param}/{model}", api_base=f"{url}/v1", api_key="none", messages=messages,
            max_tokens=16, temperature=0, timeout=120, num_retries=0, **settings,
        )  # fmt: skip

    return completion


def test_three_turns(ask):
    """The second turn sends the first answer back as LiteLLM has it, with its own fields."""
    messages: list = [{"role": "system", "content": "Be brief."}]
    lengths = []
    for text in ("Name a colour.", "Another one?", "And a third?"):
        messages.append({"role": "user", "content": text})
        answer = ask(messages)
        messages.append(answer.choices[0].message)
        lengths.append(answer.usage.prompt_tokens)
    assert lengths == sorted(set(lengths))


def test_an_answer_sent_back_as_a_dict(ask):
    question = {"role": "user", "content": "Name a colour."}
    said = ask([question]).choices[0].message.model_dump()
    assert ask([question, said, {"role": "user", "content": "Another one?"}]).usage.completion_tokens


def test_a_stream(ask):
    question = [{"role": "user", "content": "Name a colour."}]
    chunks = [*ask(question, stream=True, stream_options={"include_usage": True})]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask(question).choices[0].message.content


def test_an_error_has_its_class(url: str, model: str):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.text_completion(
            model=f"text-completion-openai/{model}", api_base=f"{url}/v1", api_key="none", prompt="word " * 20_000,
            max_tokens=5, num_retries=0,
        )  # fmt: skip
