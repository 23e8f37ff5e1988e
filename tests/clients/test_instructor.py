"""instructor in its modes TOOLS, JSON and JSON_SCHEMA."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from tests.clients.importing import imported

instructor = imported("instructor")
openai = imported("openai")


class Colour(BaseModel):
    """A colour."""

    name: str = Field(max_length=12)
    is_warm: bool


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_a_typed_answer(url: str, model: str, mode: str, calls_tools: bool, writes_schemas: bool):
    if not (calls_tools if mode == "TOOLS" else writes_schemas):
        pytest.skip("the server takes no tools" if mode == "TOOLS" else "the server takes no JSON schema")
    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])
    try:
        found = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name a colour."}],
            response_model=Colour,
            max_tokens=256,
            temperature=0,
            max_retries=0,
        )
    except Exception as error:
        # JSON promises valid JSON but no schema; a small model may write another object or no end.
        assert mode == "JSON", error
        return
    assert isinstance(found, Colour)
