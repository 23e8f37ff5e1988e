"""Several clients at a time: the queue, fairness, and clients that go away."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import threading
import time

import httpx
import openai
import pytest

from tests.launch.server.harness import AUTOREGRESSIVE, LIMIT_S, Running, assert_error, eventually, serving

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LONG = {"prompt": "class Window:", "max_tokens": 900, "ignore_eos": True, **AUTOREGRESSIVE}


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def counts(running: Running) -> tuple[int, int]:
    service = running.server.context.service
    return service.num_running, service.num_waiting


def ask(running: Running, **body) -> httpx.Response:
    return running.post("/v1/completions", **{"prompt": "a", "max_tokens": 2, **body})


def test_queue_full(checkpoint, pool):
    with serving(checkpoint, max_running=2, max_waiting=1, retry_after_s=7) as running:
        running.gate.open_gate.clear()
        accepted = [pool.submit(ask, running) for _ in range(3)]
        eventually(lambda: sum(counts(running)) == 3)
        assert running.metric("vllm:num_requests_running") + running.metric("vllm:num_requests_waiting") == 3
        answer = ask(running)
        assert_error(answer, 429, "busy", code="rate_limit_exceeded")
        assert answer.headers["retry-after"] == "7"
        with pytest.raises(openai.RateLimitError):
            running.openai().completions.create(model=running.model, prompt="a")
        running.gate.open_gate.set()
        assert [future.result().status_code for future in accepted] == [200] * 3
        running.assert_serves()


def test_first_come_first_served(checkpoint, pool):
    with serving(checkpoint, max_running=1) as running:
        running.gate.open_gate.clear()
        finished: list[int] = []
        futures = []
        for number in range(4):
            futures.append(pool.submit(lambda number=number: (ask(running, max_tokens=60), finished.append(number))))
            eventually(lambda number=number: sum(counts(running)) == number + 1)
        running.gate.open_gate.set()
        for future in futures:
            future.result()
        assert finished == [0, 1, 2, 3]


def test_a_short_request_overtakes_a_long_one(shared: Running, pool):
    long = pool.submit(ask, shared, **LONG)
    eventually(lambda: counts(shared)[0] == 1)
    assert ask(shared, max_tokens=5).status_code == 200
    assert not long.done()
    assert long.result().json()["usage"]["completion_tokens"] == 900


def test_requests_that_arrive_together_are_all_served_as_if_alone(shared: Running, pool):
    bodies = [{"prompt": f"def f{n}(", "max_tokens": 30, "temperature": 0.8, "seed": n} for n in range(8)]
    together = [future.result().json() for future in [pool.submit(ask, shared, **body) for body in bodies]]
    alone = [ask(shared, **body).json() for body in bodies]
    assert [one["choices"][0]["text"] for one in together] == [one["choices"][0]["text"] for one in alone]


def test_client_that_leaves_in_the_middle_of_a_stream(shared: Running):
    aborted = shared.metric("vllm:request_success_total", finished_reason="abort")
    stream = shared.openai().completions.create(
        model=shared.model, prompt="x", max_tokens=900, stream=True, extra_body={"ignore_eos": True, **AUTOREGRESSIVE}
    )
    next(iter(stream))
    assert counts(shared)[0] == 1
    stream.close()
    eventually(lambda: counts(shared) == (0, 0))
    assert shared.metric("vllm:num_requests_running") == 0
    assert shared.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1
    shared.assert_serves()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("place", ["running", "waiting"])
def test_client_that_leaves_before_the_first_token(checkpoint, pool, streams: bool, place: str):
    with serving(checkpoint, max_running=1) as running:
        running.gate.open_gate.clear()
        first = pool.submit(ask, running) if place == "waiting" else None
        if first:
            eventually(lambda: counts(running) == (1, 0))
        before = counts(running)
        body = json.dumps({**LONG, "stream": streams}).encode()
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(running.server._listener.getsockname()) as connection:
            connection.sendall(head + body)
            eventually(lambda: counts(running) == ((1, 1) if first else (1, 0)))
        if place == "waiting":
            eventually(lambda: counts(running) == before)
            running.gate.open_gate.set()
        else:
            eventually(lambda: bool(running.server.context.service._cancelled))  # its gate is closed: it cannot finish
            running.gate.open_gate.set()
            eventually(lambda: counts(running) == (0, 0))
        assert first is None or first.result().status_code == 200
        eventually(lambda: running.metric("vllm:request_success_total", finished_reason="abort") == 1)
        running.assert_serves()


def test_a_client_that_does_not_read_holds_nobody_up(shared: Running):
    body = json.dumps({**LONG, "stream": True, "logprobs": 20}).encode()
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(shared.server._listener.getsockname())
        connection.sendall(head + body)
        eventually(lambda: counts(shared)[0] == 1)
        shared.assert_serves()
        eventually(lambda: counts(shared) == (0, 0))


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_goes_away_is_one_line_of_the_log(checkpoint, caplog: pytest.LogCaptureFixture, streams: bool):
    caplog.set_level("INFO")
    body = json.dumps({**LONG, "stream": streams}).encode()
    head = HEAD + b"X-Request-Id: gone-1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(checkpoint) as running:
        running.gate.open_gate.clear()
        with socket.create_connection(running.server._listener.getsockname()) as connection:
            connection.sendall(head + body)
            eventually(lambda: counts(running)[0] == 1)
        eventually(lambda: "gone-1" in caplog.text)
        running.gate.open_gate.set()
        eventually(lambda: counts(running) == (0, 0))
        running.assert_serves()
    lines = [record.getMessage() for record in caplog.records if record.name not in ("httpx", "asyncio")]
    assert lines[1:] == ["POST /v1/completions: the client has gone away (request gone-1)"]


def test_a_client_that_leaves_in_its_body_is_one_line_of_the_log(checkpoint, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    head = HEAD + b"X-Request-Id: gone-2\r\nContent-Length: 100\r\n\r\n{"
    with serving(checkpoint) as running:
        with socket.create_connection(running.server._listener.getsockname()) as connection:
            connection.sendall(head)
            eventually(lambda: bool(running.server._http.server_state.tasks))
        eventually(lambda: "gone-2" in caplog.text)
        running.assert_serves()
    lines = [record.getMessage() for record in caplog.records if record.name not in ("httpx", "asyncio")]
    assert lines[1:] == ["POST /v1/completions: the client has gone away (request gone-2)"]


def test_the_first_chunk_comes_with_the_first_token(checkpoint):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True, "ignore_eos": True}
    with serving(checkpoint) as running:
        running.gate.open_gate.clear()
        with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as answer:
            lines = (line for line in answer.iter_lines() if line)
            opening = threading.Timer(0.5, running.gate.open_gate.set)
            begin = time.monotonic()
            opening.start()
            first = json.loads(next(lines).removeprefix("data: "))
            assert time.monotonic() - begin > 0.4, "no chunk is sent before there is a token"
            assert first["choices"][0]["delta"]["role"] == "assistant"
            assert len([*lines]) > 1


def test_refused_clients_are_told_to_wait_for_the_queue(checkpoint, pool):
    with serving(checkpoint, max_running=1, max_waiting=3) as running:
        service = running.server.context.service
        assert service.retry_after_s() == 1
        now = time.monotonic()
        service._ends.extend([now - 20.0, now - 10.0, now])  # one request in ten seconds
        running.gate.open_gate.clear()
        answers = [pool.submit(ask, running) for _ in range(4)]
        eventually(lambda: counts(running) == (1, 3))
        refused = ask(running)
        assert_error(refused, 429, "3 requests are waiting")
        pace_s = (time.monotonic() - (now - 20.0)) / 2
        assert 40 <= int(refused.headers["retry-after"]) <= min(60, 4 * pace_s + 1)
        running.gate.open_gate.set()
        assert {answer.result().status_code for answer in answers} == {200}
        service._ends.clear()
        service._ends.extend([now - 1000.0, now - 999.0])
        assert service.retry_after_s() == 1, "a pace of long ago is forgotten"
