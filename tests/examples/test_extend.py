"""The parts of examples/extend run, keep what they promise, and are what the documentation shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from examples.extend import draft_source, runner
from lp.drafting import simple
from tests.docs.links import ROOT

MODEL = str(ROOT / "demo" / "python-11m")
WITHIN_S = 240


def test_a_draft_source_saves_steps_and_changes_no_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simple, "OWN_SOURCES", ())
    monkeypatch.setattr(draft_source.Phrases, "phrases", ())
    without, drafted, before, after = draft_source.main(MODEL)
    assert drafted == without
    assert after > 1.2 * before


def test_a_runner_sees_every_batch_and_changes_no_token():
    usual, traced, batches = runner.main(MODEL)
    assert usual == traced
    assert batches and all(one.num_sequences == 1 and one.seconds > 0 for one in batches)
    assert max(one.num_rows for one in batches) > 1


@pytest.mark.slow
def test_a_launcher_serves_on_ranks_that_it_started():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [
        f"model.path={MODEL}",
        "parallel.ranks=2",
        "parallel.threads=1",
        "step_times=off",
        f"server.port={port}",
    ]
    command = [sys.executable, "-m", "examples.extend.launcher", *settings]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            body = {"prompt": "def f(", "max_tokens": 8, "temperature": 0}
            answer = _ask(f"http://127.0.0.1:{port}", body)
            assert answer["usage"]["completion_tokens"] == 8
        finally:
            server.terminate()
            server.wait(60)


def _ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a completion, as soon as the server is ready."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").status_code == 200:
                return httpx.post(f"{url}/v1/completions", json=body, timeout=WITHIN_S).json()
        time.sleep(0.2)
    raise AssertionError("the server did not become ready")
