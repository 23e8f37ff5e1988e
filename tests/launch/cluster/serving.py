"""Starts servers on a cluster and talks to them as a client."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from tests.launch.cluster.clusters import LocalCluster
from tests.parallel.ranks import free_port

START_S = 150.0
LEAVE_S = 40.0
# These need nothing compiled and nothing measured, and do not use the GPUs, which are only pretended.
QUICK = ["decode=lookahead", "sampling=greedy", "attention=sdpa", "model.device=cpu"]


@contextmanager
def serving(cluster: LocalCluster, model: Path, cwd: Path, *settings: str) -> Iterator[str]:
    """Runs a server and gives its address; afterwards its driver must end with exit code 0 when it is told to."""
    port = free_port()
    driver = cluster.start("task=serve", f"model.path={model}", f"server.port={port}", *QUICK, *settings, cwd=cwd)
    lines: list[str] = []
    assert driver.stderr
    threading.Thread(target=lines.extend, args=(driver.stderr,), daemon=True).start()
    url = f"http://127.0.0.1:{port}"

    def has_started() -> bool:
        """Ray Serve answers with its first replica but logs only once all are there; before, none may be killed."""
        return answers(url) and any(line.startswith("serving ") for line in lines)

    try:
        wait_until(lambda: driver.poll() is not None or has_started(), lambda: "".join(lines))
        assert driver.poll() is None, "".join(lines)
        yield url
        driver.terminate()
        assert driver.wait(LEAVE_S) == 0, "".join(lines)
    finally:
        driver.kill()
        driver.wait()
        print("the driver of the server wrote:", *lines, file=sys.stderr)  # pytest shows this if the test fails


def wait_until(holds: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def ranks_of(url: str) -> list[dict[str, Any]]:
    return httpx.get(f"{url}/status").json()["ranks"]


def all_serve(url: str, gone: int | None = None) -> bool:
    """Whether every rank serves, and none of them is the process `gone`."""
    return all(rank["state"] == "serving" and rank["pid"] != gone for rank in ranks_of(url))


def node_of(pid: int) -> str:
    """The IP address of the simulated node that a rank's process belongs to."""
    option = "--node_ip_address="
    raylet = psutil.Process(psutil.Process(pid).ppid()).cmdline()
    return next(argument.removeprefix(option) for argument in raylet if argument.startswith(option))


def stream(url: str, model: Path, num_tokens: int, disturb: Callable[[], Any] | None = None) -> str:
    """The text of a sampled completion with a seed. disturb: called after the fifth piece of it."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=90)
    settings: dict[str, Any] = {"temperature": 0.8, "seed": 3, "extra_body": {"ignore_eos": True}}
    chunks = client.completions.create(
        model=model.name, prompt="def fibonacci(n):", max_tokens=num_tokens, stream=True, **settings
    )
    pieces: list[str] = []
    for chunk in chunks:
        pieces.append(chunk.choices[0].text)
        if disturb and len(pieces) == 5:
            disturb()
    return "".join(pieces)
