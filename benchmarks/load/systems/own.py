"""This project's servers, started as processes; and servers that run already."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from benchmarks.faults.rank_server import LAUNCH, RankServer, ServerTrouble
from benchmarks.load.systems.dialects import Api, with_ignore_eos
from benchmarks.load.systems.processes import StartedProcess, last_line, started_process
from benchmarks.load.systems.specs import RunningSystem, ServerNeeds, SystemKind, SystemSpec, Unavailable

# Requests that may wait beyond those that run: more than any load has.
MOST_WAITING = 100_000


def serve_command(needs: ServerNeeds, num_ranks: int, overrides: tuple[str, ...]) -> list[str]:
    """The command line of a server. overrides: `key=value`; they win over the settings that the needs ask for."""
    settings = {
        "launcher": "local" if num_ranks > 1 else "torchrun",
        "model": "checkpoint",
        "model.path": needs.model,
        "model.dtype": needs.dtype,
        "parallel.ranks": str(num_ranks) if num_ranks > 1 else "",
        "parallel.threads": str(needs.threads),
        "server.port": "0",
        "server.max_running": str(max(1, needs.most_streams)),
        "server.max_waiting": str(MOST_WAITING),
    }
    given = {word.partition("=")[0].lstrip("+~") for word in overrides}
    words = [f"{key}={value}" for key, value in settings.items() if value and key not in given]
    return [sys.executable, str(LAUNCH / "serve.py"), *words, *overrides]


def count_ranks(needs: ServerNeeds, overrides: tuple[str, ...]) -> int:
    """The ranks of a server: what `parallel.ranks` among the overrides says, or what the needs say."""
    found = [re.fullmatch(r"\+?parallel\.ranks=(\d+)", word) for word in overrides]
    return next((int(match[1]) for match in found if match), needs.num_ranks)


@contextmanager
def own_system(spec: SystemSpec, needs: ServerNeeds, api: Api) -> Iterator[RunningSystem]:
    """One server, or several of one rank each. Raises Unavailable if one does not start."""
    with ExitStack() as held:
        processes = [held.enter_context(_own_server(spec, needs)) for _ in range(spec.number)]
        urls = [process.url for process in processes]
        yield RunningSystem(spec, urls, with_ignore_eos(api), lambda: _find_trouble(processes))


@contextmanager
def _own_server(spec: SystemSpec, needs: ServerNeeds) -> Iterator[StartedProcess]:
    num_ranks = 1 if spec.kind is SystemKind.servers else count_ranks(needs, spec.words)
    command = serve_command(needs, num_ranks, spec.words)
    with started_process(command, needs.threads) as process:
        try:
            server = RankServer(process.popen, process.log, num_ranks)
            server.wait_for_all()
        except (ServerTrouble, httpx.HTTPError) as trouble:
            raise Unavailable(f"{str(trouble).partition('. Its log')[0]}: {last_line(process.log)}") from None
        process.url = server.url
        yield process


@contextmanager
def running_url(spec: SystemSpec, api: Api) -> Iterator[RunningSystem]:
    """A server that runs already; the first model that it names is asked. Raises Unavailable if it does not answer."""
    try:
        answer = httpx.get(f"{spec.url}/v1/models", timeout=10.0, trust_env=False).raise_for_status().json()
        model = answer["data"][0]["id"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"{spec.url} does not name its model: {error}") from None
    yield RunningSystem(spec, [spec.url], with_ignore_eos(api, model), lambda: None)


def _find_trouble(processes: list[StartedProcess]) -> str | None:
    return next(filter(None, (process.find_trouble() for process in processes)), None)
