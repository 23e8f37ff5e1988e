"""Log-probabilities of prompts over HTTP: `echo` with `logprobs`, `prompt_logprobs`, no new token; /tokenizer_info."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

TEXT = "def fibonacci(n):\n    return"
PROMPTS = [TEXT, "class Window: pass", "x"]
KEYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def reference(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder)

    def logprobs(tokens: list[int]) -> torch.Tensor:
        """[T, V] of what follows each token."""
        with torch.inference_mode():
            return model(torch.tensor([tokens])).logits[0].float().log_softmax(dim=1)

    return logprobs


def ask(running: Running, **body) -> dict:
    answer = running.post("/v1/completions", **{"max_tokens": 4, "temperature": 0, "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def encode(running: Running, text: str) -> list[int]:
    return running.server.context.checkpoint.tokenizer.encode(text)


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
def test_echo_with_log_probabilities(shared: Running, reference, max_tokens: int):
    tokens, names = encode(shared, TEXT), shared.server.context.names
    answer = ask(shared, prompt=TEXT, echo=True, logprobs=2, max_tokens=max_tokens)
    (choice,), plain = answer["choices"], ask(shared, prompt=TEXT, max_tokens=max(1, max_tokens))
    more = plain["choices"][0]["text"] if max_tokens else ""
    assert choice["text"] == TEXT + more and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens
    found = choice["logprobs"]
    assert {len(found[key]) for key in KEYS} == {len(tokens) + max_tokens}
    assert found["tokens"][: len(tokens)] == [names.name(token) for token in tokens]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    expected = reference(tokens)
    for at, token in enumerate(tokens[1:]):
        assert found["token_logprobs"][at + 1] == pytest.approx(float(expected[at, token]), abs=1e-4)
        best = expected[at].topk(2)
        top = found["top_logprobs"][at + 1]
        assert [*top.values()][:2] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert top[names.name(token)] == found["token_logprobs"][at + 1]
    of_prompt = zip(found["tokens"][: len(tokens)], found["text_offset"][: len(tokens)], strict=True)
    assert all(TEXT[offset:].startswith(token) for token, offset in of_prompt)
    assert found["text_offset"][len(tokens) :][:1] == [len(TEXT)][:max_tokens]


def test_lists_of_prompts_and_several_choices(shared: Running):
    prompts = [encode(shared, prompt) for prompt in PROMPTS]
    options = {"echo": True, "logprobs": 1, "temperature": 0.8, "seed": 3}
    answer = ask(shared, prompt=prompts, n=2, **options)
    for index, choice in enumerate(answer["choices"]):
        (alone,) = ask(shared, prompt=prompts[index // 2], **{**options, "seed": 3 + index % 2})["choices"]
        assert choice["text"] == alone["text"]
        assert choice["logprobs"]["tokens"] == alone["logprobs"]["tokens"]
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
            alone["logprobs"]["token_logprobs"][1:], abs=1e-4
        )


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_streaming_equals_whole(shared: Running, max_tokens: int):
    body = {"prompt": PROMPTS, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    body["ignore_eos"] = True
    whole = ask(shared, **body)["choices"]
    with httpx.stream("POST", f"{shared.url}/v1/completions", json={**body, "stream": True}, timeout=LIMIT_S) as answer:
        answer.read()
    chunks = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    for choice in whole:
        parts = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        for key in ("tokens", "text_offset"):
            assert [value for part in parts for value in part["logprobs"][key]] == choice["logprobs"][key]
        joined = [value for part in parts for value in part["logprobs"]["token_logprobs"]]
        assert joined[1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_prompt_logprobs_as_in_vllm(shared: Running, reference):
    tokens, names = encode(shared, TEXT), shared.server.context.names
    expected = reference(tokens)
    for num in (0, 2):
        (choice,) = ask(shared, prompt=TEXT, prompt_logprobs=num)["choices"]
        assert choice["logprobs"] is None and choice["text"] == ask(shared, prompt=TEXT)["choices"][0]["text"]
        first, *found = choice["prompt_logprobs"]
        assert first is None and len(found) == len(tokens) - 1
        for at, entry in enumerate(found):
            token = str(tokens[at + 1])
            assert entry[token]["logprob"] == pytest.approx(float(expected[at, tokens[at + 1]]), abs=1e-4)
            assert entry[token]["decoded_token"] == names.name(tokens[at + 1])
            best = {str(other): number for number, other in enumerate(expected[at].topk(num).indices.tolist(), 1)}
            assert {name: one["rank"] for name, one in entry.items() if one["rank"]} == best
            assert set(entry) == {token, *best}


def test_prompt_logprobs_beside_echoed_ones(shared: Running):
    (choice,) = ask(shared, prompt=TEXT, prompt_logprobs=3, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert all(len(top) in (1, 2) for top in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(entry) in (3, 4) for entry in choice["prompt_logprobs"][1:])


def test_prompt_logprobs_of_a_conversation(shared: Running, reference):
    messages = [{"role": "user", "content": "fibonacci"}]
    tokens = shared.post("/tokenize", messages=messages).json()["tokens"]
    answer = shared.post("/v1/chat/completions", messages=messages, max_tokens=0, prompt_logprobs=1).json()
    first, *found = answer["prompt_logprobs"]
    expected = reference(tokens)
    assert first is None and answer["choices"][0]["message"]["content"] == ""
    values = [entry[str(token)]["logprob"] for entry, token in zip(found, tokens[1:], strict=True)]
    assert values == pytest.approx([float(expected[at, token]) for at, token in enumerate(tokens[1:])], abs=1e-4)


def test_echo_without_log_probabilities_and_without_tokens(shared: Running):
    (choice,) = ask(shared, prompt=TEXT, echo=True, max_tokens=0)["choices"]
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == (TEXT, None, "length")
    assert "prompt_logprobs" not in choice


def test_no_token_is_refused_where_nothing_is_shown(shared: Running):
    assert_error(shared.post("/v1/completions", prompt="a", max_tokens=0), 400, "at least 1", param="max_tokens")
    messages = [{"role": "user", "content": "a"}]
    answer = shared.post("/v1/chat/completions", messages=messages, max_tokens=0)
    assert_error(answer, 400, "at least 1", param="max_tokens")


def test_tokenizer_info(shared: Running, checkpoint):
    answer = httpx.get(f"{shared.url}/tokenizer_info").json()
    assert answer["eos_token"] == "<|end|>" and answer["bos_token"] is None
    assert answer["chat_template"] == shared.server.context.checkpoint.tokenizer.chat_template
    assert answer["tokenizer_class"] and answer["model_max_length"] == shared.server.context.checkpoint.max_length
    with serving(checkpoint, api_keys=["key"]) as running:
        assert httpx.get(f"{running.url}/tokenizer_info").status_code == 401
