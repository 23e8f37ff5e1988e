"""Conversations become tokens by the checkpoint's template; every refusal names the message and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from lp.text import chat_template
from lp.text.chat_template import NoChatTemplate
from tests.models import build_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]


def test_the_template_is_rendered_up_to_the_answer() -> None:
    tokenizer = build_tokenizer(chat_template=TEMPLATE)
    tokens = chat_template.encode(tokenizer, HELLO)
    assert tokenizer.decode(tokens) == "<system>Be brief.\n<user>Grüße\n<assistant>"


def test_a_checkpoint_without_a_template_is_named() -> None:
    with pytest.raises(NoChatTemplate, match="no chat template"):
        chat_template.encode(build_tokenizer(), HELLO)


@pytest.mark.parametrize(
    "template",
    [TEMPLATE, "{{ 1 / 0 }}", "{{ nothing.at.all }}", "{% if", "{{ messages[0].content + 1 }}"],
)
def test_whatever_a_template_raises_is_one_line(template: str) -> None:
    tokenizer = build_tokenizer(chat_template=template)
    with pytest.raises(
        ValueError, match=r"chat template (refuses these messages: |fails on these messages \(\w+: ).+"
    ) as refusal:
        chat_template.encode(tokenizer, [{"role": "robot", "content": "beep"}])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user"}, "'content', not None"),
        ({"content": "a"}, "'role', not None"),
        ({"role": "user", "content": [1]}, "'content', not [1]"),
        ({"role": "user", "content": "a", "calls": []}, "has calls"),
        ("hello", "must be an object"),
        ({"role": "user", "content": "a\ud800"}, "not valid Unicode: character 1"),
    ],
)
def test_messages_of_another_form_are_refused(message: Any, expected: str) -> None:
    with pytest.raises(ValueError) as refusal:
        chat_template.encode(build_tokenizer(chat_template=TEMPLATE), [HELLO[1], message])
    assert str(refusal.value).startswith("messages[1]") and expected in str(refusal.value)
