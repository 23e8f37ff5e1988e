"""Pydantic AI: agents that answer with text, as a stream, by a JSON schema and by a tool."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, Field

from tests.clients.importing import imported

pydantic_ai = imported("pydantic_ai")
models = imported("pydantic_ai.models.openai")
providers = imported("pydantic_ai.providers.openai")

SETTINGS = {"max_tokens": 16, "temperature": 0}
QUESTION = "Name a colour."


class Colour(BaseModel):
    """A colour."""

    name: str = Field(max_length=12)
    is_warm: bool


@pytest.fixture
def chat_model(url: str, model: str):
    return models.OpenAIChatModel(model, provider=providers.OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def test_a_conversation(chat_model):
    agent = pydantic_ai.Agent(chat_model, instructions="Be brief.", model_settings=SETTINGS)
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("Another one?", message_history=first.all_messages())
    assert first.output and second.usage().input_tokens > first.usage().input_tokens


def test_a_stream(chat_model):
    agent = pydantic_ai.Agent(chat_model, model_settings=SETTINGS)

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as answer:
            return "".join([text async for text in answer.stream_text(delta=True)])

    assert asyncio.run(streamed()) == agent.run_sync(QUESTION).output


@pytest.mark.parametrize("output", ["NativeOutput", "ToolOutput"])
def test_a_typed_answer(chat_model, output: str, writes_schemas: bool, calls_tools: bool):
    if not (writes_schemas if output == "NativeOutput" else calls_tools):
        pytest.skip("the server takes no JSON schema" if output == "NativeOutput" else "the server takes no tools")
    agent = pydantic_ai.Agent(
        chat_model, output_type=getattr(pydantic_ai, output)(Colour), model_settings={**SETTINGS, "max_tokens": 256}
    )
    assert isinstance(agent.run_sync(QUESTION).output, Colour)
