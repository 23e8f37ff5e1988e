"""What Python programs write: sampling settings as keywords, and messages as a prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lp import Engine, Sampling
from tests.models import load_reference, save_checkpoint

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
MESSAGES = [{"role": "user", "content": "def f(x):"}]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def chat(chat_folder: Path) -> Engine:
    return Engine.from_pretrained(str(chat_folder), device="cpu", compile="off", step_times="off")


def test_sampling_settings_are_keywords(llama: Engine) -> None:
    typed = llama.generate("def f(", max_new_tokens=20, sampling=Sampling(temperature=0.8, top_p=0.9, seed=3))
    assert llama.generate("def f(", max_new_tokens=20, temperature=0.8, top_p=0.9, seed=3).token_ids == typed.token_ids
    greedy = llama.generate("def f(", max_new_tokens=20)
    assert greedy.token_ids != typed.token_ids
    parts = list(llama.stream("def f(", max_new_tokens=20, temperature=0.8, top_p=0.9, seed=3))
    assert [token for part in parts for token in part.tokens] == typed.token_ids


def test_a_keyword_wins_over_the_object(llama: Engine) -> None:
    base = Sampling(temperature=0.8, seed=3)
    changed = llama.generate("def f(", max_new_tokens=20, sampling=base, seed=4)
    assert changed.token_ids == llama.generate("def f(", max_new_tokens=20, temperature=0.8, seed=4).token_ids
    assert base == Sampling(temperature=0.8, seed=3)


@pytest.mark.parametrize(
    ("prompt", "settings", "named"),
    [
        (5, {}, "prompt is 5"),
        (None, {}, "prompt is None"),
        ([5], {"decode": "lookahead"}, "decode='lookahead'"),
        ([5], {"max_new_tokens": "5"}, "max_new_tokens='5'"),
        ([5], {"temperature": "hot"}, "temperature='hot'"),
        ([5], {"stop": ["."]}, "stopping=Stopping"),
    ],
)
def test_what_is_of_another_type_is_named(prompt: Any, settings: dict[str, Any], named: str, llama: Engine) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        llama.generate(prompt, **settings)


def test_messages_are_answered_as_transformers_does(chat: Engine, chat_folder: Path) -> None:
    """`generate` of transformers, after its own apply_chat_template, gives the same tokens."""
    tokenizer = chat.checkpoint.tokenizer
    inputs = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")
    expected = load_reference(chat_folder).generate(**inputs, max_new_tokens=24, do_sample=False)
    answer = chat.generate(MESSAGES, max_new_tokens=24)
    assert answer.token_ids == expected[0, inputs["input_ids"].shape[1] :].tolist()
    assert answer.token_ids == chat.generate("<user>def f(x):\n<assistant>", max_new_tokens=24).token_ids


def test_messages_need_a_template(llama: Engine) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        llama.generate(MESSAGES)


def test_messages_may_be_any_mapping_and_sequence(chat: Engine) -> None:
    read = json.loads(json.dumps(MESSAGES))
    assert chat.generate(tuple(read), max_new_tokens=5).token_ids == chat.generate(MESSAGES, max_new_tokens=5).token_ids
