"""Bad input over HTTP gives one clear message and the right status, and the server still serves."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx
import pytest

from launch.server.run import bind
from launch.server.settings import ServerSettings
from tests.launch.server.checkpoint import CONTEXT
from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def complete(running: Running, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/completions", content=content, headers={**JSON, **headers}, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("body", "word", "param"),
    [
        ({}, "prompt is required", "prompt"),
        ({"prompt": ""}, "empty", "prompt"),
        ({"prompt": []}, "empty", "prompt"),
        ({"prompt": 5}, "prompt must be a string or a list of token ids", "prompt"),
        ({"prompt": ["a", 1]}, "prompt must be", "prompt"),
        ({"prompt": ["a", ""]}, "empty", "prompt"),
        ({"prompt": [[1], []]}, "empty", "prompt"),
        ({"prompt": [[1], [99999]]}, "99999", "prompt"),
        ({"prompt": ["a"] * 1025}, "1025 prompts asks for more than the 1024 texts", "prompt"),
        ({"prompt": ["a", "b"], "n": 513}, "n=513 for 2 prompts asks for more than the 1024 texts", "n"),
        ({"prompt": [1, "b"]}, "prompt must be", "prompt"),
        ({"prompt": [1, 99999]}, "99999", "prompt"),
        ({"prompt": [-1]}, "-1", "prompt"),
        ({"prompt": [1, True]}, "prompt must be", "prompt"),
        (
            {"prompt": "a " * 5 * CONTEXT},
            f"This model's maximum context length is {CONTEXT} tokens. However,",
            "prompt",
        ),
        (
            {"prompt": "a", "max_tokens": CONTEXT},
            f"requested {CONTEXT + 1} tokens (1 in the prompt, {CONTEXT} in",
            "max_tokens",
        ),
        ({"prompt": "a", "max_tokens": 10**30}, "maximum context length is", "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**4000}, "you requested 1000", "max_tokens"),
        ({"prompt": "a", "a\n" * 5000: 1}, "a a a", None),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens=-1", "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens=0", "max_tokens"),
        ({"prompt": "a", "max_tokens": "ten"}, "max_tokens: input should be a valid integer, not 'ten'", "max_tokens"),
        ({"prompt": "a", "max_tokens": 2.5}, "max_tokens", "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens", "max_tokens"),
        ({"prompt": "a", "max_tokens": 4, "min_tokens": 5}, "min_tokens=5", "min_tokens"),
        ({"prompt": "a", "n": 10**12}, "n=1000000000000 for 1 prompt asks for more than the 1024 texts", "n"),
        ({"prompt": "a", "n": 0}, "n=0", "n"),
        ({"prompt": "a", "best_of": 0}, "best_of=0", "best_of"),
        ({"prompt": "a", "best_of": 3000}, "best_of=3000 for 1 prompt", "best_of"),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of=2 is less than n=3", "best_of"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of=2 cannot be streamed", "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported", "suffix"),
        ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens=-1 is out of range: it must be at least 0", None),
        ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs=21", "logprobs"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs=21", "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs=-1", "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "cannot be streamed", "prompt_logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs=21", "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs=-1", "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "logprobs"),
        ({"prompt": "a", "temperature": -0.1}, "temperature=-0.1", "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "temperature"),
        ({"prompt": "a", "top_p": 1.5}, "top_p=1.5", "top_p"),
        ({"prompt": "a", "top_p": 0}, "top_p=0", "top_p"),
        ({"prompt": "a", "top_k": -2}, "top_k=-2", "top_k"),
        ({"prompt": "a", "presence_penalty": 3}, "presence_penalty", "presence_penalty"),
        ({"prompt": "a", "seed": -2}, "seed=-2", "seed"),
        ({"prompt": "a", "seed": 2**63}, "seed=", "seed"),
        ({"prompt": "a", "stop": 3}, "stop must be", "stop"),
        ({"prompt": "a", "stop": [""]}, "stop holds an empty string", "stop"),
        ({"prompt": "a", "stop": ["x"] * 17}, "at most 16 strings", "stop"),
        ({"prompt": "a", "stop": "x" * 257}, "256 characters", "stop"),
        ({"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids[0]", "stop_token_ids[0]"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias names token 99999", "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias", "logit_bias"),
        ({"prompt": "a", "logit_bias": {"one": 1}}, "logit_bias.one", None),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias", "logit_bias"),
        ({"prompt": "a", "priority": 0}, "priority=0 must be from 0.01 to 100", "priority"),
        ({"prompt": "a", "priority": "high"}, "priority", "priority"),
        ({"prompt": "a", "stream": "yes"}, "stream", "stream"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream=true", "stream_options"),
        ({"prompt": "a", "guided_xml": {}}, "guided_xml is not a field that this server knows", "guided_xml"),
        ({"prompt": "a", "model": 5}, "model", "model"),
        ({"prompt": "a", "decode": "lookahead"}, "decode", "decode"),
        ({"prompt": "a", "decode": {"method": "magic"}}, "'magic' is unknown", "decode"),
        (
            {"prompt": "a", "decode": {"method": "lookahead", "depth": 3}},
            "decode.depth is not a setting of lookahead",
            "decode",
        ),
        ({"prompt": "a", "decode": {"method": "lookahead", "window": "7"}}, "decode.window must be int", "decode"),
        ({"prompt": "a", "decode": {"method": "lookahead", "window": 0}}, "decode.window=0 is out of range", "decode"),
        ({"prompt": "a", "decode": {"method": "lookahead", "ngram": 1}}, "decode.ngram=1 is out of range", "decode"),
        (
            {"prompt": "a", "decode": {"method": "lookahead", "guesses": 10**9}},
            "decode.guesses=1000000000 is out of range",
            "decode",
        ),
        (
            {"prompt": "a", "decode": {"method": "lookahead", "window": 128, "ngram": 32, "guesses": 256}},
            "rows a step",
            "decode",
        ),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_bad_field(shared: Running, body: dict[str, Any], word: str, param: str | None):
    assert_error(shared.post("/v1/completions", **body), 400, word, param=param)


def test_the_server_still_serves(shared: Running):
    shared.assert_serves()


def test_too_long_for_the_context_has_openais_code(shared: Running):
    answer = shared.post("/v1/completions", prompt=[1] * (CONTEXT + 1))
    words = f"context length is {CONTEXT} tokens", f"({CONTEXT + 1} in the prompt"
    assert_error(answer, 400, *words, param="prompt", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("content", "word", "code"),
    [
        (b"", "not valid JSON", "invalid_json"),
        (b"{", "not valid JSON", "invalid_json"),
        (b'{"prompt": "a",}', "not valid JSON", "invalid_json"),
        (b"prompt=a", "not valid JSON", "invalid_json"),
        (b'["a"]', "must be a JSON object", "invalid_json"),
        (b"null", "must be a JSON object", "invalid_json"),
        (b"[" * 100_000, "not valid JSON", "invalid_json"),
        (b'{"prompt": "a\xff"}', "not valid UTF-8 (at byte 13)", "invalid_utf8"),
        (b'{"prompt": "\\ud800"}', "not valid JSON", "invalid_json"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature", None),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature", None),
    ],
)
def test_bad_body(shared: Running, content: bytes, word: str, code: str | None):
    assert_error(complete(shared, content), 400, word, code=code)
    shared.assert_serves()


def test_text_that_is_not_ascii_is_accepted(shared: Running):
    answer = shared.post("/v1/completions", prompt="naïve 数 🙂 \x00", echo=True, max_tokens=2)
    assert answer.json()["choices"][0]["text"].startswith("naïve 数 🙂 \x00")


def test_unknown_model(shared: Running):
    for path, extra in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": [{"role": "user"}]})):
        answer = shared.post(f"/v1/{path}", model="gpt-9", **extra)
        assert_error(answer, 404, "'gpt-9' does not exist", "tiny-llama", param="model", code="model_not_found")
    assert_error(httpx.get(f"{shared.url}/v1/models/gpt-9"), 404, "gpt-9", code="model_not_found")
    shared.assert_serves()


def test_unknown_path_and_method(shared: Running):
    assert_error(httpx.get(f"{shared.url}/v2/nothing"), 404, "there is no GET /v2/nothing", code="not_found")
    answer = httpx.get(f"{shared.url}/v1/completions")
    assert_error(answer, 405, "GET /v1/completions is not allowed", code="method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_body_of_many_megabytes(shared: Running):
    answer = complete(shared, b'{"prompt": "' + b"a" * 20_000_000 + b'"}')
    assert_error(answer, 413, "4194304 bytes", code="body_too_large")
    shared.assert_serves()


def test_body_of_many_megabytes_in_chunks(shared: Running):
    parts = (b"x" * 65536 for _ in range(100))
    answer = httpx.post(f"{shared.url}/v1/completions", content=parts, headers=JSON, timeout=LIMIT_S)
    assert_error(answer, 413, "4194304 bytes", code="body_too_large")


def test_body_that_is_announced_too_large_is_not_asked_for(shared: Running):
    head = HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(shared.server._listener.getsockname(), timeout=10) as connection:
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    shared.assert_serves()


def test_body_that_never_comes(shared: Running):
    head = HEAD + b"Content-Length: 100\r\n\r\n{"
    with socket.create_connection(shared.server._listener.getsockname()) as connection:
        connection.sendall(head)
    shared.assert_serves()


def test_bytes_that_are_not_http(shared: Running):
    with socket.create_connection(shared.server._listener.getsockname(), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    shared.assert_serves()


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; choose"):
            bind(ServerSettings(port=port))


def test_host_that_is_not_this_machine():
    with pytest.raises(ValueError, match=r"cannot listen on 192\.0\.2\.1:0: .*server\.host"):
        bind(ServerSettings(host="192.0.2.1", port=0))


@pytest.mark.parametrize(
    "bad",
    [
        {"port": -1},
        {"port": 65_536},
        {"max_running": 0},
        {"max_waiting": -1},
        {"drain_s": -1.0},
        {"retry_after_s": 0},
        {"max_body_bytes": 1},
        {"default_max_tokens": 0},
        {"max_choices": 0},
        {"host": ""},
        {"api_keys": [""]},
    ],
    ids=str,
)
def test_settings_out_of_range(bad: dict[str, Any]):
    with pytest.raises(ValueError, match=rf"server\.{next(iter(bad))}"):
        bind(ServerSettings(**bad))


def test_api_keys(checkpoint):
    with serving(checkpoint, api_keys=["first", "second"]) as running:
        for headers in ({}, {"authorization": "Bearer third"}, {"authorization": "Basic first"}):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")):
                answer = httpx.request(method, running.url + path, headers=headers)
                assert_error(answer, 401, "API key", code="invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert running.openai(api_key="second").models.list().data[0].id == running.model
        assert httpx.get(f"{running.url}/health").status_code == 200


def test_a_bug_shows_no_trace(checkpoint, monkeypatch: pytest.MonkeyPatch):
    with serving(checkpoint) as running:
        conversion = running.server.context.conversion
        with monkeypatch.context() as patch:
            patch.setattr(conversion, "prepare", lambda *given: 1 / 0)
            answer = running.post("/v1/completions", prompt="a")
        assert_error(answer, 500, "internal error", code="internal_error")
        assert "division" not in answer.text
        running.assert_serves()


def test_many_bad_requests_at_once(shared: Running):
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(complete(shared, b"{").status_code)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [400] * 20
    shared.assert_serves()
