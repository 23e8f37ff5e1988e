"""Server-sent events of /v1/completions."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.launch.server.harness import LIMIT_S, Running

BODY = {"prompt": "class Window:", "max_tokens": 40, "temperature": 0.9, "seed": 11, "ignore_eos": True}


def events(running: Running, **body) -> tuple[httpx.Response, list[str]]:
    with httpx.stream(
        "POST", f"{running.url}/v1/completions", json={"stream": True, **body}, timeout=LIMIT_S
    ) as answer:
        answer.read()
    assert all(event.startswith("data: ") for event in answer.text.split("\n\n")[:-1])
    return answer, [event.removeprefix("data: ") for event in answer.text.split("\n\n")[:-1]]


@pytest.mark.parametrize("extra", [{}, {"stop": ["e", "th"]}, {"echo": True}, {"decode": {"method": "autoregressive"}}])
def test_streaming_equals_whole(shared: Running, extra: dict):
    whole = shared.post("/v1/completions", **BODY, **extra).json()
    answer, found = events(shared, **BODY, **extra)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert found[-1] == "[DONE]"
    chunks = [json.loads(event) for event in found[:-1]]
    assert all(chunk["object"] == "text_completion" and "usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == whole["choices"][0]["finish_reason"] and not any(reasons[:-1])


def test_logprobs_equal_those_of_the_whole(shared: Running):
    whole = shared.post("/v1/completions", **BODY, logprobs=2).json()["choices"][0]["logprobs"]
    parts = [json.loads(event)["choices"][0]["logprobs"] for event in events(shared, **BODY, logprobs=2)[1][:-1]]
    assert len(parts) > 1
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [value for part in parts for value in part[key]]
        if key == "token_logprobs":
            assert joined == pytest.approx(whole[key], abs=1e-4)
        elif key == "top_logprobs":
            assert [top.keys() for top in joined] == [top.keys() for top in whole[key]]
        else:
            assert joined == whole[key]


def test_usage_comes_last_and_only_when_asked_for(shared: Running):
    body = {**BODY, "seed": 1, "decode": {"method": "lookahead"}}  # its drafts do not depend on earlier requests
    whole = shared.post("/v1/completions", **body).json()
    _, found = events(shared, **body, stream_options={"include_usage": True})
    *chunks, last = [json.loads(event) for event in found[:-1]]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert last["lookahead"]["steps"] == whole["lookahead"]["steps"]


def test_the_first_text_comes_before_the_last_is_made(shared: Running):
    """The openai package receives tokens as they are generated."""
    stream = shared.openai().completions.create(
        model=shared.model, prompt="x", max_tokens=600, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert shared.server.context.service.num_running == 1
    stream.close()
