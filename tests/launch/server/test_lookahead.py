"""Traces in the chunks of streams, and the routes under /lookahead, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from launch.server.conversion import Conversion
from launch.server.openai_protocol import ChatBody, CompletionBody
from launch.server.openai_replies import ChatReply, CompletionReply, TokenNames
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import Checkpoint
from lp.request import Output
from lp.statistics import Statistics
from lp.trace import LEGEND
from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

PROMPT = "def fibonacci(n):\n    return n\n\ndef fib"
METHODS: list[dict[str, Any]] = [
    {"method": "auto"},
    {"method": "auto", "rows": 40},
    {"method": "autoregressive"},
    {"method": "lookahead", "window": 15, "ngram": 5, "guesses": 15},
    {"method": "prompt_lookup"},
    {"method": "jacobi"},
]


def events(running: Running, path: str, **body: Any) -> Iterator[dict[str, Any]]:
    """The chunks of a stream."""
    with httpx.stream("POST", running.url + path, json={**body, "stream": True}, timeout=LIMIT_S) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


@pytest.mark.parametrize("decode", METHODS, ids=lambda decode: "-".join(map(str, decode.values())))
def test_every_step_of_a_completion_has_a_trace(shared: Running, decode: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "decode": decode}
    chunks = [*events(shared, "/v1/completions", **body, lookahead_trace=True, stream_options={"include_usage": True})]
    *steps, end = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in steps) == whole_text(shared, body)
    traces = [chunk["lookahead"] for chunk in steps]
    assert [trace["step"] for trace in traces] == [*range(len(traces))]
    assert sum(len(trace["emitted"]) for trace in traces) == end["usage"]["completion_tokens"] == 40
    assert end["lookahead"]["steps"] == len(traces)
    for trace in traces:
        check(trace)


def whole_text(running: Running, body: dict[str, Any]) -> str:
    return running.post("/v1/completions", **body).json()["choices"][0]["text"]


def check(trace: dict[str, Any]) -> None:
    """Asserts that a trace is whole in itself and small."""
    tokens, parents = trace["tokens"], trace["parents"]
    assert len(tokens) == len(parents) == len(trace["sources"]) == len(trace["ranks"])
    assert parents[0] == -1 and all(0 <= parent < row for row, parent in enumerate(parents) if row)
    assert trace["sources"][0] == "r" and set(trace["sources"]) <= LEGEND.keys() and "o" not in trace["sources"]
    path = [0, *trace["accepted"]]
    assert all(parents[row] == above for above, row in pairwise(path))
    assert [tokens[row] for row in path[1:]] == trace["emitted"][: len(path) - 1]
    assert len(trace["emitted"]) - len(trace["accepted"]) in (0, 1)
    assert trace["rows"] >= len(tokens) and trace["sequences"] >= 1 and trace["step_ms"] > 0
    assert len(json.dumps(trace, separators=(",", ":"))) <= 1000


def test_large_trees_are_cut(shared: Running) -> None:
    decode = {"method": "lookahead", "window": 40, "ngram": 6, "guesses": 20}
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "decode": decode, "lookahead_trace": True}
    traces = [chunk["lookahead"] for chunk in events(shared, "/v1/completions", **body)]
    for trace in traces:
        check(trace)
        assert trace["window"][0] == 40 and trace["pool"] >= 0
    assert max(trace["omitted"] for trace in traces) > 50
    assert all(len(trace["tokens"]) + trace["omitted"] <= trace["rows"] for trace in traces)


def test_chats_and_choices_have_traces(shared: Running) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0, "n": 2}
    chunks = [*events(shared, "/v1/chat/completions", **body, lookahead_trace=True)]
    for index in range(2):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        traces = [chunk["lookahead"] for chunk in own if "lookahead" in chunk]
        assert (
            sum(len(trace["emitted"]) for trace in traces) == 12 and len(traces) == len(own) - 1
        )  # the role comes first
        for trace in traces:
            check(trace)


def test_a_grammar_is_a_source(shared: Running) -> None:
    schema = {"type": "object", "properties": {"first": {"type": "string", "maxLength": 4}}, "required": ["first"]}
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "response_format": form, "lookahead_trace": True}
    for decode in METHODS:
        traces = [chunk["lookahead"] for chunk in events(shared, "/v1/completions", **body, decode=decode)]
        for trace in traces:
            check(trace)
        assert decode["method"] == "autoregressive" or any("m" in trace["sources"] for trace in traces), decode


def test_steps_whose_text_is_held_back_have_chunks(shared: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stop": ["nothing like this ever comes", PROMPT * 3]}
    chunks = [*events(shared, "/v1/completions", **body, decode=METHODS[2], lookahead_trace=True)]
    assert [chunk["lookahead"]["step"] for chunk in chunks] == [*range(20)]


@pytest.mark.parametrize("kind", ["completion", "chat"])
@pytest.mark.parametrize("is_traced", [True, False])
def test_a_step_without_text_or_trace_has_a_chunk_where_steps_are_traced(
    checkpoint: Checkpoint, kind: str, is_traced: bool
) -> None:
    """A rank that was killed could not tell it any more: others say what it has added."""
    conversion, names = Conversion(RequestBuilder(checkpoint), ["a"], 16, 4), TokenNames(checkpoint.tokenizer)
    fields: dict[str, Any] = {"stream": True, "lookahead_trace": is_traced}
    if kind == "chat":
        chat = ChatBody.model_validate({**fields, "messages": [{"role": "user", "content": PROMPT}]})
        reply = ChatReply(conversion.prepare(chat, None, None), "a", names)
    else:
        body = CompletionBody.model_validate({**fields, "prompt": PROMPT})
        reply = CompletionReply(conversion.prepare(body, None, None), "a", names, checkpoint)
    assert [*reply.opening()] == [] or kind == "chat"
    output = Output(reply.prepared.requests[0].id, [5], "", None, None, Statistics())
    found = [*reply.chunks(output)]
    assert len(found) == is_traced and all("lookahead" not in chunk for chunk in found)


def test_nothing_is_traced_unless_asked_for(shared: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    for asked in ({}, {"lookahead_trace": False}, {"lookahead_trace": None}):
        assert all("lookahead" not in chunk for chunk in events(shared, "/v1/completions", **body, **asked))


def test_traces_that_cannot_be_had_are_refused(shared: Running, checkpoint: Checkpoint) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "lookahead_trace": True}
    assert_error(shared.post("/v1/completions", **body), 400, "lookahead_trace", "stream=true")
    wrong = {**body, "lookahead_trace": "yes", "stream": True}
    assert_error(shared.post("/v1/completions", **wrong), 400, "lookahead_trace", param="lookahead_trace")
    response = shared.post("/v1/responses", input="x", lookahead_trace=True, stream=True)
    assert_error(response, 400, "lookahead_trace")
    with serving(checkpoint, trace=False) as running:
        assert_error(running.post("/v1/completions", **body, stream=True), 403, "server.trace=true", code="not_allowed")
        assert httpx.get(running.url + "/lookahead/state").json()["may_trace"] is False


def test_state(shared: Running) -> None:
    state = httpx.get(shared.url + "/lookahead/state").json()
    assert state["model"] == shared.model and {"auto", "lookahead", "autoregressive"} <= set(state["methods"])
    # What cannot be streamed is not offered, nor what needs a second model or heads that are not there.
    assert not {"beam", "best_of", "draft_model", "medusa", "contrastive"} & set(state["methods"])
    assert state["legend"]["r"] == "root" and state["legend"]["w"] == "window"
    assert state["ranks"] == [{"rank": 0, "state": "serving"}] and state["epoch"] is None and state["curve"] is None
    assert state["may_kill"] is False and state["needs_key"] is False and state["may_trace"] is True


def test_texts_of_tokens(shared: Running) -> None:
    ids = shared.post("/tokenize", prompt="def f(x):", add_special_tokens=False).json()["tokens"]
    assert "".join(shared.post("/lookahead/tokens", ids=ids).json()["texts"]) == "def f(x):"
    assert shared.post("/lookahead/tokens", ids=[]).json() == {"texts": []}
    for wrong in ([10**9], [-1], ["x"], None, list(range(2)) * 5001):
        assert_error(shared.post("/lookahead/tokens", ids=wrong), 400, "ids")
    assert_error(httpx.post(shared.url + "/lookahead/tokens", content=b"x"), 415, "application/json")


def test_keys_are_asked_for(checkpoint: Checkpoint) -> None:
    with serving(checkpoint, api_keys=["secret"], page_kills_ranks=True) as running:
        assert httpx.get(running.url + "/lookahead/state").json()["needs_key"] is True
        for path in ("/lookahead/tokens", "/lookahead/ranks/0/kill"):
            assert_error(httpx.post(running.url + path, json={"ids": []}), 401, "API key")
        keyed = {"Authorization": "Bearer secret"}
        assert httpx.post(running.url + "/lookahead/tokens", json={"ids": []}, headers=keyed).status_code == 200


def test_ranks_are_killed_only_where_that_is_allowed(shared: Running, checkpoint: Checkpoint) -> None:
    assert_error(httpx.post(shared.url + "/lookahead/ranks/0/kill"), 403, "page_kills_ranks=true")
    with serving(checkpoint, page_kills_ranks=True) as running:
        assert_error(httpx.post(running.url + "/lookahead/ranks/0/kill"), 403, "launcher=local", "parallel.ranks=2")
        foreign = {"Origin": "https://elsewhere.example"}
        answer = httpx.post(running.url + "/lookahead/ranks/0/kill", headers=foreign)
        assert_error(answer, 403, "elsewhere.example", "server.allowed_origins")
