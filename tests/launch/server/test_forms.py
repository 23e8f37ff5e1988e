"""What clients send beside the fields that matter is ignored, and vLLM's fields do what they do there."""

from __future__ import annotations

import dataclasses

import pytest

from tests.launch.server.checkpoint import make_tokenizer
from tests.launch.server.harness import Running, assert_error, serving

MESSAGES = [{"role": "user", "content": "fibonacci"}]
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if think %}<think>{% endif %}{% endif %}"
)


def chat(running: Running, messages=MESSAGES, **body) -> str:
    answer = running.post("/v1/chat/completions", messages=messages, max_tokens=8, temperature=0, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def complete(running: Running, **body) -> str:
    answer = running.post("/v1/completions", **{"prompt": "def f(", "max_tokens": 8, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def tokenized(running: Running, **body) -> list[int]:
    answer = running.post("/tokenize", **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.parametrize(
    "vendor",
    [
        {"guided_json": None, "guided_regex": None, "frobnicate": None, "use_beam_search": False},
        {"stream_options": None, "request_id": "x", "spaces_between_special_tokens": True, "best_of": None, "n": None},
        {"top_k": -1, "seed": -1, "priority": 0},
        {"stop_token_ids": None, "bad_words": [], "allowed_token_ids": None, "return_token_ids": False},
    ],
)
def test_fields_that_change_nothing(shared: Running, vendor: dict):
    assert complete(shared, **vendor) == complete(shared)


def test_what_is_not_there_is_refused(shared: Running):
    for field, value in {"use_beam_search": True, "return_token_ids": True}.items():
        assert_error(shared.post("/v1/completions", prompt="a", **{field: value}), 400, field, param=field)


def test_top_k_of_minus_one_is_off_and_a_large_one_allows_all(shared: Running):
    options = {"temperature": 1.2, "seed": 5}
    assert complete(shared, **options, top_k=-1) == complete(shared, **options, top_k=0)
    assert complete(shared, **options, top_k=10**6) == complete(shared, **options, top_k=0)
    assert complete(shared, **options, top_k=-1) != complete(shared, **options, top_k=1)


def test_a_seed_of_minus_one_draws_one(shared: Running):
    seeds = set()
    for _ in range(2):
        answer = shared.post("/v1/completions", prompt="a", max_tokens=1, seed=-1)
        seeds.add(answer.json()["lookahead"]["seed"])
    assert len(seeds) == 2 and -1 not in seeds


def test_notes_of_clients_in_messages_are_ignored(shared: Running):
    """litellm sends an earlier answer back with its own fields, Anthropic's users mark what is to be cached."""
    answer = {"role": "assistant", "content": "one", "refusal": None, "annotations": [], "audio": None}
    noted = {**answer, "provider_specific_fields": {"a": 1}, "reasoning_content": "so", "function_call": None}
    noted |= {"tool_calls": None, "thinking_blocks": [], "frobnicate": 5}
    again = {"role": "user", "content": [{"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]}
    plain = chat(shared, [*MESSAGES, {"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}])
    assert chat(shared, [*MESSAGES, noted, again]) == plain


def test_unknown_stream_options_are_ignored(shared: Running):
    options = {"include_usage": True, "continuous_usage_stats": None, "include_obfuscation": False, "frobnicate": 1}
    answer = shared.post("/v1/completions", prompt="a", max_tokens=2, stream=True, stream_options=options)
    assert answer.status_code == 200 and '"completion_tokens":2' in answer.text
    assert complete(shared, stream_options={}) == complete(shared)


def test_variables_of_the_chat_template(checkpoint):
    thinking = dataclasses.replace(checkpoint, tokenizer=make_tokenizer(chat_template=THINKING))
    with serving(thinking) as running:
        written = "<user>fibonacci\n<assistant>"
        assert chat(running) == complete(running, prompt=written)
        with_variable = {"chat_template_kwargs": {"think": True}}
        assert chat(running, **with_variable) == complete(running, prompt=written + "<think>") != chat(running)
        assert tokenized(running, messages=MESSAGES, **with_variable) == tokenized(running, prompt=written + "<think>")
        answer = running.post("/v1/chat/completions", messages=MESSAGES, chat_template_kwargs={"tokenize": True})
        assert_error(answer, 400, "chat_template_kwargs holds tokenize", param="chat_template_kwargs")


def test_a_conversation_without_a_generation_prompt(shared: Running):
    written = "<user>fibonacci\n"
    options = {"add_generation_prompt": False}
    assert chat(shared, **options) == complete(shared, prompt=written) != chat(shared)
    assert tokenized(shared, messages=MESSAGES, **options) == tokenized(shared, prompt=written)


def test_the_final_message_goes_on(shared: Running):
    messages = [*MESSAGES, {"role": "assistant", "content": "def f(n):"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    written = "<user>fibonacci\n<assistant>def f(n):"
    assert chat(shared, messages, **options) == complete(shared, prompt=written)
    assert tokenized(shared, messages=messages, **options) == tokenized(shared, prompt=written)
    answer = shared.post("/v1/chat/completions", messages=messages, continue_final_message=True)
    assert_error(answer, 400, "add_generation_prompt=false", param="continue_final_message")


def test_special_tokens_are_shown_if_wished(shared: Running):
    bias = {"logit_bias": {"0": 100}, "ignore_eos": True, "max_tokens": 2}
    assert complete(shared, **bias) == ""
    assert complete(shared, **bias, skip_special_tokens=False) == "<|end|>" * 2
    assert complete(shared, **bias, skip_special_tokens=False, stop="|end") == "<"
    assert complete(shared, **bias, skip_special_tokens=True) == ""


def test_special_tokens_are_added_if_wished(checkpoint):
    tokenizer = make_tokenizer(chat_template=THINKING)
    tokenizer.bos_token = "<|end|>"
    tokenizer.add_bos_token = True
    tokenizer.update_post_processor()
    with serving(dataclasses.replace(checkpoint, tokenizer=tokenizer)) as running:
        begun = [0, *(plain := tokenized(running, prompt="def f(", add_special_tokens=False))]
        assert tokenized(running, prompt="def f(") == begun
        assert complete(running) == complete(running, prompt=begun)
        assert complete(running, add_special_tokens=False) == complete(running, prompt=plain)
        conversation = tokenized(running, messages=MESSAGES)
        assert conversation[0] != 0
        assert tokenized(running, messages=MESSAGES, add_special_tokens=True) == [0, *conversation]
        assert chat(running, add_special_tokens=True) == complete(running, prompt=[0, *conversation])
