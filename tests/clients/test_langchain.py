"""langchain-openai's ChatOpenAI: answers, streams, tools and structured output in its three ways."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from tests.clients.importing import imported

langchain = imported("langchain_openai")


class Colour(BaseModel):
    """A colour."""

    name: str
    is_warm: bool


@pytest.fixture(scope="module")
def chat(url: str, model: str):
    return langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=64, max_retries=0, timeout=120
    )


def test_a_conversation(chat):
    first = chat.invoke([("system", "Be brief."), ("human", "Name a colour.")])
    assert first.usage_metadata["output_tokens"] > 0
    second = chat.invoke([("human", "Name a colour."), first, ("human", "Another one?")])
    assert second.usage_metadata["input_tokens"] > 0


def test_a_stream(chat):
    text = "".join(chunk.content for chunk in chat.stream("Name a colour."))
    assert text == chat.invoke("Name a colour.").content


def test_tools(chat, calls_tools: bool):
    if not calls_tools:
        pytest.skip("the server takes no tools")
    answer = chat.bind_tools([Colour], tool_choice="Colour").invoke("Name a colour.")
    assert [call["name"] for call in answer.tool_calls] == ["Colour"]


@pytest.mark.parametrize("method", ["function_calling", "json_mode", "json_schema"])
def test_structured_output(chat, method: str, calls_tools: bool, writes_schemas: bool):
    if not (calls_tools if method == "function_calling" else writes_schemas):
        pytest.skip("the server takes no tools" if method == "function_calling" else "the server takes no JSON schema")
    structured = chat.with_structured_output(Colour, method=method, include_raw=True)
    found = structured.invoke('Answer in JSON: {"name": a colour, "is_warm": true or false}.')
    finish = found["raw"].response_metadata["finish_reason"]
    # json_mode promises valid JSON but no schema, and a text that reaches its limit is none.
    assert isinstance(found["parsed"], Colour) or method == "json_mode" or finish == "length"
