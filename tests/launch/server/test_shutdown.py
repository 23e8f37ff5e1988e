"""How a server ends: drained after a signal, at once after a second, with an error if its engine fails."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from parallel.errors import RankLost
from tests.launch.server.harness import AUTOREGRESSIVE, LIMIT_S, assert_error, eventually, serving

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Program:
    """A server process; `log` is what it has written to standard error so far."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def url(self) -> str:
        eventually(lambda: bool(re.search(r"serving \S+ on http", "".join(self.log))))
        match = re.search(r"serving tiny-llama on (http://127\.0\.0\.1:\d+)\n", "".join(self.log))
        assert match
        return match[1]


@contextlib.contextmanager
def program(folder: Path, step_s: float, **settings) -> Iterator[Program]:
    command = [sys.executable, "-m", "tests.launch.server.process", str(folder), str(step_s)]
    process = subprocess.Popen(
        [*command, json.dumps({"port": 0, **settings})], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    found = Program(process)
    reader = threading.Thread(target=lambda: found.log.extend(process.stderr or []), daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.kill()
        process.wait()
        reader.join(5)


def stream_chunks(url: str, max_tokens: int) -> Iterator[dict]:
    body = {"prompt": "a", "max_tokens": max_tokens, "stream": True, "ignore_eos": True, **AUTOREGRESSIVE}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.slow
def test_sigterm_drains_and_ends_with_exit_code_0(folder: Path):
    with program(folder, step_s=0.02) as running:
        url = running.url()
        chunks = stream_chunks(url, 60)
        next(chunks)
        running.process.send_signal(signal.SIGUSR1)  # the text does not end while a client looks at the server
        running.process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{url}/ready").status_code == 503)
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
        assert_error(refused, 503, "shutting down", code="shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{url}/health").status_code == 200
        running.process.send_signal(signal.SIGUSR2)
        assert [*chunks][-1]["choices"][0]["finish_reason"] == "length"
        assert running.process.wait(LIMIT_S) == 0
    assert "Traceback" not in "".join(running.log)


@pytest.mark.slow
def test_a_second_signal_ends_at_once(folder: Path):
    with program(folder, step_s=0.02) as running:
        chunks = stream_chunks(running.url(), 900)
        next(chunks)
        running.process.send_signal(signal.SIGINT)
        time.sleep(1.2)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(LIMIT_S) == 128 + signal.SIGINT
        with contextlib.suppress(httpx.HTTPError):
            assert not any(chunk.get("choices", [{}])[0].get("finish_reason") for chunk in chunks)
    assert "Traceback" not in "".join(running.log)


def test_requests_that_are_not_finished_in_time_are_cancelled(checkpoint):
    with serving(checkpoint, drain_s=0.3) as running:
        chunks = stream_chunks(running.url, 900)
        next(chunks)
        running.gate.open_gate.clear()
        running.server.stop()
        time.sleep(0.4)
        running.gate.open_gate.set()
        assert [*chunks][-1]["error"]["code"] == "shutting_down"
        running.thread.join(LIMIT_S)
        assert running.exit_code == [0]


def test_waiting_requests_are_served_while_draining(checkpoint):
    with serving(checkpoint, max_running=1) as running, concurrent.futures.ThreadPoolExecutor(3) as pool:
        running.gate.open_gate.clear()
        answers = [pool.submit(running.post, "/v1/completions", prompt="a", max_tokens=3) for _ in range(3)]
        service = running.server.context.service
        eventually(lambda: service.num_running == 1 and service.num_waiting == 2)
        running.server.stop()
        running.gate.open_gate.set()
        assert [answer.result().status_code for answer in answers] == [200] * 3
        running.thread.join(LIMIT_S)
        assert running.exit_code == [0]


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), RankLost("rank 1 is gone", (1,))])
def test_an_engine_that_fails_ends_the_server(checkpoint, caplog: pytest.LogCaptureFixture, error: Exception):
    with (
        caplog.at_level(logging.WARNING),
        serving(checkpoint, max_running=1) as running,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        chunks = stream_chunks(running.url, 900)
        next(chunks)
        running.gate.open_gate.clear()
        waiting = pool.submit(running.post, "/v1/completions", prompt="a")
        eventually(lambda: running.server.context.service.num_waiting == 1)
        running.gate.error = error
        running.gate.open_gate.set()
        assert_error(waiting.result(), 500, "engine has stopped", code="internal_error")
        assert [*chunks][-1]["error"]["code"] == "internal_error"
        running.thread.join(LIMIT_S)
        assert running.exit_code == [1]
    assert [record.getMessage() for record in caplog.records] == [
        f"the engine stopped: {type(error).__name__}: {error}"
    ]
