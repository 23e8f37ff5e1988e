"""Several texts of one request: `n`, `best_of` and lists of prompts. Each is what its own request yields."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.launch.server.harness import LIMIT_S, Running, eventually, serving

PROMPTS = ["def fibonacci(n):", "class Window:", "return n if n < 2 else"]
MESSAGES = [{"role": "user", "content": "fibonacci"}]
SAMPLED = {"max_tokens": 16, "temperature": 0.9, "seed": 7, "ignore_eos": True}


def ask(running: Running, **body) -> dict:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = running.post(path, **{**SAMPLED, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(choice: dict) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


def streamed(running: Running, **body) -> list[dict]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = {**SAMPLED, **body, "stream": True}
    with httpx.stream("POST", f"{running.url}{path}", json=body, timeout=LIMIT_S) as answer:
        answer.read()
    *events, last = [event.removeprefix("data: ") for event in answer.text.split("\n\n")[:-1]]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("prompts", [PROMPTS, [[5, 6, 7, 8], [9, 10], [5, 6, 7]]], ids=["texts", "tokens"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}], ids=["sampled", "greedy"])
def test_each_text_is_that_of_its_own_request(shared: Running, prompts: list, sampling: dict):
    answer = ask(shared, prompt=prompts, n=2, **sampling)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for index, choice in enumerate(answer["choices"]):
        alone = ask(shared, prompt=prompts[index // 2], **{**sampling, "seed": SAMPLED["seed"] + index % 2})
        assert text(choice) == text(alone["choices"][0])
        assert choice["finish_reason"] == alone["choices"][0]["finish_reason"]
    if not sampling:
        assert text(answer["choices"][0]) != text(answer["choices"][1])


def test_choices_of_a_conversation(shared: Running):
    answer = ask(shared, messages=MESSAGES, n=3, logprobs=True, top_logprobs=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for index, choice in enumerate(answer["choices"]):
        alone = ask(shared, messages=MESSAGES, seed=7 + index, logprobs=True, top_logprobs=1)["choices"][0]
        assert choice["message"] == alone["message"]
        mine, its = (one["logprobs"]["content"] for one in (choice, alone))
        assert [one["token"] for one in mine] == [one["token"] for one in its]
        assert [one["logprob"] for one in mine] == pytest.approx([one["logprob"] for one in its], abs=1e-4)


def test_without_a_seed_choices_differ(shared: Running):
    answer = ask(shared, prompt=PROMPTS[:2], n=2, seed=None)
    seeds = [one["seed"] for one in answer["lookahead"]["requests"]]
    assert seeds[1] == seeds[0] + 1 and seeds[3] == seeds[2] + 1 and seeds[0] != seeds[2]
    assert len({text(choice) for choice in answer["choices"]}) == 4


def test_the_largest_seed_is_followed_by_zero(shared: Running):
    answer = ask(shared, prompt="a", n=2, seed=2**63 - 1)
    assert [one["seed"] for one in answer["lookahead"]["requests"]] == [2**63 - 1, 0]
    assert text(answer["choices"][1]) == text(ask(shared, prompt="a", seed=0)["choices"][0])


def test_usage_counts_each_prompt_once_and_all_that_was_generated(shared: Running):
    usage = ask(shared, prompt=PROMPTS, n=2)["usage"]
    alone = [ask(shared, prompt=prompt)["usage"] for prompt in PROMPTS]
    assert usage["prompt_tokens"] == sum(one["prompt_tokens"] for one in alone)
    assert usage["completion_tokens"] == 6 * SAMPLED["max_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert ask(shared, prompt=PROMPTS[0], best_of=3)["usage"]["completion_tokens"] == 3 * SAMPLED["max_tokens"]


def test_echo_of_each_prompt(shared: Running):
    answer = ask(shared, prompt=PROMPTS, n=2, echo=True)
    for index, choice in enumerate(answer["choices"]):
        assert text(choice).startswith(PROMPTS[index // 2])


def test_the_best_have_the_highest_mean_log_probability(shared: Running):
    candidates = ask(shared, prompt=PROMPTS[:2], n=4, logprobs=0)["choices"]
    means = [sum(one["logprobs"]["token_logprobs"]) / SAMPLED["max_tokens"] for one in candidates]
    answer = ask(shared, prompt=PROMPTS[:2], n=2, best_of=4)
    expected = []
    for begin in (0, 4):
        order = sorted(range(begin, begin + 4), key=lambda index: means[index], reverse=True)
        expected += [text(candidates[index]) for index in order[:2]]
    assert [text(choice) for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])


@pytest.mark.parametrize("body", [{"prompt": PROMPTS, "n": 2, "echo": True}, {"messages": MESSAGES, "n": 3}])
@pytest.mark.parametrize("continuous", [False, True])
def test_streaming_equals_whole(shared: Running, body: dict, continuous: bool):
    body = {**body, "decode": {"method": "lookahead"}}
    whole = ask(shared, **body)
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    *chunks, last = streamed(shared, **body, stream_options=options)
    assert len({chunk["id"] for chunk in chunks}) == 1 and all(len(chunk["choices"]) == 1 for chunk in chunks)
    texts, reasons = dict[int, str](), dict[int, list]()
    for chunk in chunks:
        (choice,) = chunk["choices"]
        more = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + more
        reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert texts == {choice["index"]: text(choice) for choice in whole["choices"]}
    assert all(found[-1] == "length" and not any(found[:-1]) for found in reasons.values())
    assert last["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole["usage"][key]
    so_far = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]]
    assert bool(so_far) == continuous and so_far == sorted(so_far)


def test_log_probabilities_of_streamed_choices(shared: Running):
    whole = ask(shared, prompt=PROMPTS[:2], logprobs=1)["choices"]
    found: dict[int, list[str]] = {0: [], 1: []}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for chunk in streamed(shared, prompt=PROMPTS[:2], logprobs=1):
        choice = chunk["choices"][0]
        found[choice["index"]] += choice["logprobs"]["tokens"]
        offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert [found[0], found[1]] == [choice["logprobs"]["tokens"] for choice in whole]
    assert [offsets[0], offsets[1]] == [choice["logprobs"]["text_offset"] for choice in whole]


def test_more_choices_than_places(checkpoint):
    """A request is taken whole if there are places for the texts that can run at a time; the others wait."""
    with serving(checkpoint, max_running=2, max_waiting=1) as running:
        answer = ask(running, prompt=PROMPTS, n=3)
        alone = [text(ask(running, prompt=prompt, n=3)["choices"][2]) for prompt in PROMPTS]
        assert [text(choice) for choice in answer["choices"][2::3]] == alone


def test_a_client_that_goes_away_cancels_all_its_texts(checkpoint):
    with serving(checkpoint, max_running=2) as running:
        service = running.server.context.service
        running.gate.open_gate.clear()
        body = {"prompt": PROMPTS, "max_tokens": 500, "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{running.url}/v1/completions", json=body, timeout=1)
        running.gate.open_gate.set()
        eventually(lambda: service.num_running + service.num_waiting == 0)
        running.assert_serves()
