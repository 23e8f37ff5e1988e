"""OpenAI's agents, over chat completions and over responses."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.importing import imported

agents = imported("agents")
openai = imported("openai")

QUESTION = "Name a colour."


@pytest.fixture(params=["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def agent(request: pytest.FixtureRequest, url: str, model: str):
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    return agents.Agent(
        name="painter",
        instructions="Be brief.",
        model=getattr(agents, request.param)(model=model, openai_client=client),
        # The agents take a response that ends by its length for a fault of the model.
        model_settings=agents.ModelSettings(max_tokens=200, temperature=0, extra_body={"stop": ["\n", "e"]}),
    )


def test_a_conversation(agent):
    async def two_turns() -> tuple[str, str]:
        first = await agents.Runner.run(agent, QUESTION)
        more = [*first.to_input_list(), {"role": "user", "content": "Another one?"}]
        second = await agents.Runner.run(agent, more)
        return first.final_output, second.final_output

    assert all(isinstance(text, str) for text in asyncio.run(two_turns()))


def test_a_stream(agent):
    async def both() -> tuple[str, str]:
        whole = await agents.Runner.run(agent, QUESTION)
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        events = [event async for event in streamed.stream_events()]
        raw = [event.data for event in events if event.type == "raw_response_event"]
        text = "".join(one.delta for one in raw if one.type == "response.output_text.delta")
        return whole.final_output, text

    whole, text = asyncio.run(both())
    assert text == whole
