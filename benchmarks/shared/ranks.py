"""Runs a function as several ranks, which are processes of this host, for benchmarks without a launcher."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Result = TypeVar("Result")


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
