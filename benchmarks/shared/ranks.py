"""Runs ranks, which are processes of this host, for benchmarks without a launcher: a function, or work as it comes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from torch.distributed import TCPStore

from lp import Engine
from lp.engine.builder import EngineSettings
from lp.step_cost import StepTimes
from parallel.build import MeshTopology
from parallel.mesh import ParallelSettings, make_mesh, open_store

Result = TypeVar("Result")
# What ranks are asked to do: its name, and what belongs to it.
Work = tuple[Any, ...]
WAIT_S = 600.0


def run_ranks(function: Callable[..., Result], num_ranks: int, *args: Any) -> list[Result]:
    """Calls function(rank, *args) in a process for each rank. Returns the results in the order of the ranks.

    If a rank fails, the others, which may wait for it for ever, are ended too. Raises SystemExit.
    """
    context = multiprocessing.get_context("spawn")
    ranks: dict[Connection, int] = {}
    processes = []
    results: dict[int, Result] = {}
    try:
        for rank in range(num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run_rank, args=(sender, function, rank, args))
            process.start()
            sender.close()  # the rank has the only open end, so its death is seen
            processes.append(process)
            ranks[receiver] = rank
        while len(results) < num_ranks:
            for receiver in wait([receiver for receiver, rank in ranks.items() if rank not in results]):
                assert isinstance(receiver, Connection)
                try:
                    results[ranks[receiver]] = receiver.recv()
                except EOFError:
                    raise SystemExit(f"rank {ranks[receiver]} failed; its error is printed above") from None
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return [results[rank] for rank in range(num_ranks)]


def _run_rank(sender: Connection, function: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    sender.send(function(rank, *args))


@contextmanager
def waiting_ranks(function: Callable[..., None], num_ranks: int, *args: Any) -> Iterator[list[Connection]]:
    """Calls function(connection, rank, port of a store, *args) in a process for each rank.

    Each answers the work that `ask` sends it, the first of which is ("ready",), and returns after ("end",).
    """
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connections, processes = [], []
    try:
        for rank in range(num_ranks):
            own, other = context.Pipe()
            process = context.Process(target=function, args=(other, rank, store.port, *args))
            process.start()
            other.close()
            connections.append(own)
            processes.append(process)
        ask(connections, ("ready",))
        yield connections
        for connection in connections:
            connection.send(("end",))
        for process in processes:
            process.join(WAIT_S)
    finally:
        for process in processes:
            process.kill()


def ask(connections: list[Connection], work: Work) -> Any:
    """Has all ranks do some work; returns the first one's answer. Raises SystemExit if one fails."""
    for connection in connections:
        connection.send(work)
    try:
        answers = [connection.recv() for connection in connections]
    except EOFError:
        raise SystemExit("a rank failed; its error is printed above") from None
    return answers[0]


def ask_and_learn(group: list[Connection], work: Work) -> Any:
    """Has all ranks of a group do some work, and then decide by the step times that the first one has learnt."""
    answer = ask(group, work)
    if times := ask(group, ("new times",)):
        ask(group, ("use times", times))
    return answer


def answer_about_times(engine: Engine, work: Work) -> dict[str, Any] | None:
    """A rank's answer to `ask_and_learn`; None to any other work."""
    match work:
        case ("new times",):
            return engine.take_new_times().to_dict() if engine.has_new_times else None
        case ("use times", times):
            engine.use_times(StepTimes.from_dict(times))
    return None


def take_core(rank: int) -> None:
    """Keeps this process on a core of its own, if there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


@contextmanager
def assembled(
    settings: EngineSettings, parallel: ParallelSettings, rank: int, num_ranks: int, port: int
) -> Iterator[Engine]:
    """The engine of one of these ranks. port: of the store where they meet."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(num_ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    mesh = make_mesh(parallel, "cpu")
    with closing(MeshTopology(parallel, mesh, open_store(mesh, WAIT_S))) as place:
        yield Engine.assemble(settings, place)
