"""A server that is sent what cannot be used still serves. What it answers: see tests/golden/test_errors.py."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx
import pytest

from launch.server.run import bind
from launch.server.settings import ServerSettings
from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def complete(running: Running, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/completions", content=content, headers={**JSON, **headers}, timeout=LIMIT_S)


def test_text_that_is_not_ascii_is_accepted(shared: Running):
    answer = shared.post("/v1/completions", prompt="naïve 数 🙂 \x00", echo=True, max_tokens=2)
    assert answer.json()["choices"][0]["text"].startswith("naïve 数 🙂 \x00")


def test_a_method_that_is_not_allowed(shared: Running):
    assert httpx.get(f"{shared.url}/v1/completions").headers["allow"] == "POST"


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
