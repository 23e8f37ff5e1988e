"""Runs tests on real ranks: processes on this host that meet at a Store of the test process, as under torchrun.

    def sums(mesh, channel, number): return channel.compare(np.full(1, number, np.int32)).sum()
    assert run_ranks(sums, 2, 21, exchange="gloo") == [42, 42]

The function and its arguments must be picklable, and the function must stand at the top level of its module. Nothing
here ever hangs: after `limit_s` seconds all processes are killed, and the test fails with what they wrote to stderr.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed import TCPStore

from lp.platform.disk_cache import VARIABLE
from parallel.comm.channel import Channel
from parallel.comm.rows import Table

# Ranks are forked from a server that has imported what they need, so that each starts in a fraction of a second. Those
# on a GPU are not: CUDA does not work in a fork of a process that has looked for GPUs, which some imports do.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.parallel.preloaded"])
_CHECKOUT = Path(__file__).resolve().parents[2]
# Ranks share what the test run has compiled, also those of a test that has a cache of its own.
_CACHE = {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}


def gather(channel: Channel, mine: np.ndarray, fingerprint: int = 0) -> np.ndarray:
    """The integers of all ranks in a step, int32 [I] to int32 [N, I], as rows of one table."""
    number, size = channel.num_ranks, len(mine)
    senders = {rank: range(rank * size, (rank + 1) * size) for rank in range(number)}
    table = Table(senders, np.empty((number * size, 1), np.int32))
    channel.gather_rows([mine[:, None]], [table], fingerprint)
    return table.numbers.reshape(number, size)


@dataclass
class RankOutcome:
    """How one rank ended. error: its traceback, if it raised. exit_code: negative if a signal killed it."""

    result: Any = None
    error: str | None = None
    exit_code: int | None = None
    stderr: str = ""


@dataclass(frozen=True)
class _Start:
    """What a rank's process needs to start."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    exchange: str
    timeout_s: float
    device: str
    stderr_path: str
    environment: dict[str, str] = field(default_factory=dict)


def run_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any, exchange: str = "shm", **options: Any) -> list[Any]:
    """The results of `fn(mesh, channel, *args)` on each rank. Fails the test if a rank returns none.

    options: those of `run_ranks_to_end`.
    """
    outcomes = run_ranks_to_end(fn, num_ranks, *args, exchange=exchange, **options)
    failures = [
        f"--- rank {rank}: exit code {outcome.exit_code}\n{outcome.error or ''}{outcome.stderr}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error or outcome.exit_code != 0
    ]
    assert not failures, "\n".join(failures)
    return [outcome.result for outcome in outcomes]


def run_ranks_to_end(
    fn: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    exchange: str = "shm",
    timeout_s: float = 20.0,
    limit_s: float = 300.0,
    device: str = "cpu",
    doomed: tuple[int, ...] = (),
    own_store: bool = False,
) -> list[RankOutcome]:
    """Runs `fn(mesh, channel, *args)` on each rank and returns how each ended, whatever happened.

    timeout_s: timeout of the collectives. limit_s: limit of the whole run. doomed: ranks that need not end by
    themselves; they are killed once all others have ended. own_store: rank 0 hosts the Store instead of this process,
    as without torchrun.
    """
    context = forking() if device == "cpu" else multiprocessing.get_context("spawn")
    store = None if own_store else TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = free_port() if store is None else store.port
    with tempfile.TemporaryDirectory() as folder:
        processes, receivers, stderr_paths = [], [], []
        for rank in range(num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            path = os.path.join(folder, f"stderr_{rank}")
            environment = _environment(rank, num_ranks, port, agent_store=store is not None)
            start = _Start(fn, args, exchange, timeout_s, device, path, environment)
            process = context.Process(target=_rank_main, args=(start, sender), daemon=True)
            process.start()
            sender.close()
            processes.append(process)
            receivers.append(receiver)
            stderr_paths.append(Path(path))
        outcomes = _collect(processes, receivers, time.monotonic() + limit_s, doomed)
        for outcome, path in zip(outcomes, stderr_paths):
            outcome.stderr = path.read_text(errors="replace") if path.exists() else ""
    return outcomes


def forking() -> ForkServerContext:
    """The context of processes that are forked from a server which has imported what ranks need."""
    with chdir(_CHECKOUT):  # where the server finds what it imports
        forkserver.ensure_running()
    return _CONTEXT


def _environment(rank: int, num_ranks: int, port: int, agent_store: bool) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_store),
        "OMP_NUM_THREADS": "1",
        **_CACHE,
    }


def _rank_main(start: _Start, sender: Connection) -> None:
    with open(start.stderr_path, "wb", buffering=0) as stderr:
        os.dup2(stderr.fileno(), 2)
    os.environ.update(start.environment)
    import torch

    from parallel.comm.channel import Channel
    from parallel.comm.connect import connect
    from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh

    torch.set_num_threads(1)
    settings = ParallelSettings(exchange=ExchangeKind(start.exchange), timeout_s=start.timeout_s)
    try:
        mesh = make_mesh(settings, start.device)
        channel = Channel(connect(settings, mesh))
        outcome = RankOutcome(result=start.fn(mesh, channel, *start.args))
        channel.close()
    except Exception:
        outcome = RankOutcome(error=traceback.format_exc())
    sender.send(outcome)
    sender.close()
    sys.stderr.flush()


def _collect(
    processes: list[BaseProcess], receivers: list[Connection], deadline: float, doomed: tuple[int, ...]
) -> list[RankOutcome]:
    outcomes = [RankOutcome() for _ in processes]
    survivors = [rank for rank in range(len(processes)) if rank not in doomed]
    try:
        for rank in [*survivors, *doomed]:
            if rank in doomed:
                processes[rank].kill()
            outcomes[rank] = _outcome(processes[rank], receivers[rank], deadline)
    finally:
        for process in processes:
            process.kill()
            process.join(5)
    return outcomes


def _outcome(process: BaseProcess, receiver: Connection, deadline: float) -> RankOutcome:
    outcome = RankOutcome(error="it neither returned nor raised")
    try:
        if receiver.poll(max(0.0, deadline - time.monotonic())):
            outcome = receiver.recv()
        else:
            outcome.error = "it did not end within limit_s: killed"
    except EOFError:
        outcome.error = "its process ended without a result"
    process.join(max(0.0, min(10.0, deadline - time.monotonic())))
    outcome.exit_code = process.exitcode
    return outcome


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
