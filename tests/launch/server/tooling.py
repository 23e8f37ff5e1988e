"""A server whose model is told what to write: by a choice of one text, which the grammar forces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lp.model.checkpoint import Checkpoint
from tests.launch.server.checkpoint import make_tokenizer
from tests.launch.server.harness import Running, serving

# A chat template that writes calls as Hermes does, and whose assistant may think before it answers.
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}{# </think> #}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL_WEATHER = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALL_CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
THOUGHTS = "<think>\nlet me see\n</think>\n\n"


@contextmanager
def serving_tools(checkpoint: Checkpoint, template: str | None = TEMPLATE, **settings) -> Iterator[Running]:
    with serving(dataclasses.replace(checkpoint, tokenizer=make_tokenizer(template)), **settings) as running:
        yield running


def writes(text: str) -> dict[str, Any]:
    """Fields of a body whose answer is this text."""
    return {"structured_outputs": {"choice": [text]}, "temperature": 0}
