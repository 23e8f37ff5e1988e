"""transformers' own continuous batching, as its command `transformers serve` offers it over HTTP."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.load.systems.dialects import Api, of_transformers
from benchmarks.load.systems.processes import StartedProcess, last_line, started_process
from benchmarks.load.systems.specs import RunningSystem, ServerNeeds, SystemSpec, Unavailable

START_S = 180.0
# Tokens of one block of transformers' paged cache (ContinuousBatchingConfig.page_size), and blocks beyond what the
# streams need.
PAGE = 256
SPARE_BLOCKS = 8


def serve_command(needs: ServerNeeds, port: int, options: tuple[str, ...]) -> list[str]:
    """The command line of the server. options: they win over those that the needs ask for.

    The cache gets room for all streams at their longest: left alone, transformers takes (and zeroes) 60% of the memory.
    """
    blocks = needs.most_streams * -(-needs.longest // PAGE) + SPARE_BLOCKS
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", needs.model, "--continuous-batching"]
    command += ["--device", "cpu", "--dtype", needs.dtype, "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--cb-num-blocks", str(blocks), *options]


@contextmanager
def transformers_system(spec: SystemSpec, needs: ServerNeeds, api: Api) -> Iterator[RunningSystem]:
    """Raises Unavailable if it does not start."""
    port = _free_port()
    with started_process(serve_command(needs, port, spec.words), needs.threads) as process:
        process.url = f"http://127.0.0.1:{port}"
        _wait(process)
        yield RunningSystem(spec, [process.url], of_transformers(api), process.find_trouble, has_metrics=False)


def _wait(process: StartedProcess) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if trouble := process.find_trouble():
            raise Unavailable(trouble)
        try:
            if httpx.get(f"{process.url}/health", timeout=2.0, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise Unavailable(f"it did not serve within {START_S:g} s: {last_line(process.log)}")


def _free_port() -> int:
    """A port that nobody listens on now: `transformers serve` cannot pick one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
