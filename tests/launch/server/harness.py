"""Runs a server in a thread of the test, on a port of its own. A test can hold its engine up or make it fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from launch.backend import EngineBackend
from launch.server.run import Server, bind
from launch.server.settings import ServerSettings
from lp import Engine
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import Checkpoint
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.scheduling.settings import SchedulerSettings
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel

AUTOREGRESSIVE = {"decode": {"method": "autoregressive"}}
# Seconds after which a test gives up. Nothing that works comes near it, however busy the machine is.
LIMIT_S = 120.0


class Gate(SingleDevice):
    """A runner that waits before each step until the gate is open, and then raises `error` if it is set."""

    def __init__(self, checkpoint: Checkpoint):
        super().__init__(checkpoint.model)
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.error: Exception | None = None

    def launch(self, steps: list[StepInput]) -> Pending:
        assert self.open_gate.wait(LIMIT_S)
        if self.error:
            raise self.error
        return super().launch(steps)


@dataclass
class Running:
    """A server that is running. exit_code: holds one number once `thread` has ended."""

    server: Server
    engine: Engine
    gate: Gate
    thread: threading.Thread
    exit_code: list[int]

    @property
    def url(self) -> str:
        return self.server.address

    @property
    def model(self) -> str:
        return self.server.context.model_name

    def openai(self, **options) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": LIMIT_S, **options}
        )

    def post(self, path: str, **body) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=LIMIT_S)

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples with this name and these labels."""
        families = text_string_to_metric_families(httpx.get(self.url + "/metrics", timeout=LIMIT_S).text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        assert samples or labels, f"no metric {name}"
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def assert_serves(self) -> None:
        """Asserts that the server still answers requests."""
        answer = self.post("/v1/completions", prompt="def f(", max_tokens=3, temperature=0)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 3


@contextmanager
def serving(checkpoint: Checkpoint, scheduler: SchedulerSettings | None = None, **settings) -> Iterator[Running]:
    gate = Gate(checkpoint)
    engine = Engine(checkpoint, gate, RequestBuilder(checkpoint, roles=checkpoint.extensions), scheduler=scheduler)
    typed = ServerSettings(**{"port": 0, **settings})
    server = Server(EngineBackend(engine, Channel(LocalExchange())), typed, bind(typed))
    exit_code: list[int] = []
    thread = threading.Thread(target=lambda: exit_code.append(server.run()), daemon=True)
    thread.start()
    try:
        yield Running(server, engine, gate, thread, exit_code)
    finally:
        gate.open_gate.set()
        server.stop(within_s=0)
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the server did not stop"


def eventually(is_so: Callable[[], bool], within_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)


def assert_error(answer: httpx.Response, status: int, *words: str, param: str | None = None, code: str | None = None):
    """Asserts that the answer has this status and OpenAI's error body, with one message that holds the words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert answer.json().keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
    assert "\n" not in error["message"] and "Traceback" not in error["message"] and len(error["message"]) <= 400
    for word in words:
        assert word in error["message"], error["message"]
    if param:
        assert error["param"] == param, error
    if code:
        assert error["code"] == code, error
