"""What an exchange costs: all-gathers between ranks of this host, shared memory against gloo (and NCCL on GPUs).

    python -m benchmarks.exchange_cost --ranks 2

Each rank computes for a while, as in a decoding step, and then exchanges. The cost of one exchange is the time from the
arrival of the last rank until every rank has the data: how far apart the ranks arrive is not the exchange's doing. The
implementations take turns, block by block, within one run. Prints a table and writes it to --output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch.distributed import TCPStore

from benchmarks.shared.report import markdown_table, publish
from parallel.comm.base import Exchange
from parallel.comm.connect import connect
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh

BLOCK = 10  # exchanges of one kind in a row

Readings: TypeAlias = dict[tuple[str, float], list[tuple[float, float]]]


@dataclass(frozen=True)
class Plan:
    """kinds: exchanges to compare. work_ms: busy times before an exchange. rounds: exchanges for each kind and time."""

    ranks: int
    kinds: list[str]
    num_bytes: int
    work_ms: list[float]
    rounds: int


@dataclass(frozen=True)
class Cost:
    """Microseconds of one all-gather, from the arrival of the last rank until all have the data."""

    exchange: str
    work_ms: float
    median_us: float
    mean_us: float
    p99_us: float


def main() -> None:
    plan, output = parse_arguments()
    costs = measure(plan)
    title = f"Cost of one exchange: {plan.num_bytes} bytes between {plan.ranks} ranks of one host"
    data = {"plan": asdict(plan), "costs": [asdict(cost) for cost in costs]}
    publish(output, f"exchange_cost-{plan.ranks}-ranks", title, describe(plan, costs), data)


def parse_arguments() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    nccl = ["nccl"] if torch.cuda.is_available() else []
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default 2)")
    parser.add_argument("--exchanges", nargs="+", default=["shm", "gloo", *nccl], choices=["shm", "gloo", "nccl"])
    parser.add_argument("--bytes", type=int, default=512, help="bytes sent by each rank, a multiple of 4 (default 512)")
    parser.add_argument(
        "--work-ms", type=float, nargs="+", default=[0, 2, 5, 20], help="busy work before each exchange"
    )
    parser.add_argument("--rounds", type=int, default=300, help="exchanges of each kind for each work (default 300)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder of the result files")
    arguments = parser.parse_args()
    if arguments.ranks < 2 or arguments.bytes < 4 or arguments.bytes % 4 or arguments.rounds < 1:
        parser.error("--ranks must be at least 2, --bytes a positive multiple of 4, --rounds at least 1")
    plan = Plan(arguments.ranks, arguments.exchanges, arguments.bytes, arguments.work_ms, arguments.rounds)
    return plan, arguments.output


def measure(plan: Plan) -> list[Cost]:
    """Starts the ranks and compares their clock readings."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    stores = {kind: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for kind in plan.kinds}
    ports = {kind: store.port for kind, store in stores.items()}
    ranks = [context.Process(target=run_rank, args=(rank, plan, ports, results)) for rank in range(plan.ranks)]
    for process in ranks:
        process.start()
    readings = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    return [
        summarise(kind, work_ms, np.array([reading[kind, work_ms] for reading in readings]))
        for work_ms in plan.work_ms
        for kind in plan.kinds
    ]


def run_rank(rank: int, plan: Plan, ports: dict[str, int], results: Queue[Readings]) -> None:
    torch.set_num_threads(1)
    exchanges = {kind: connect_at(rank, plan, kind, port) for kind, port in ports.items()}
    readings: Readings = {(kind, work_ms): [] for kind in plan.kinds for work_ms in plan.work_ms}
    for work_ms in plan.work_ms:
        for _ in range(0, plan.rounds, BLOCK):
            for kind, exchange in exchanges.items():
                block = [time_one(exchange, plan.num_bytes // 4, work_ms) for _ in range(1 + BLOCK)]
                readings[kind, work_ms] += block[1:]  # the first shows how the ranks left the other exchange
    results.put(readings)
    for exchange in exchanges.values():
        exchange.close()


def connect_at(rank: int, plan: Plan, kind: str, port: int) -> Exchange:
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(plan.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.environ.update(environment)
    settings = ParallelSettings(exchange=ExchangeKind(kind))
    return connect(settings, make_mesh(settings, "cuda" if kind == "nccl" else "cpu", environment))


def time_one(exchange: Exchange, num_integers: int, work_ms: float) -> tuple[float, float]:
    """Computes for `work_ms`, then exchanges; the clock before and after the exchange (one clock for all processes)."""
    mine = np.arange(num_integers, dtype=np.int32)
    compute_for(work_ms / 1e3)
    begin = time.perf_counter()
    gathered = exchange.all_gather(mine)
    end = time.perf_counter()
    assert (gathered == mine).all(), "an exchange delivered the wrong integers"
    return begin, end


def compute_for(seconds: float) -> None:
    """Keeps this rank's core and caches busy, as a forward pass does."""
    end = time.perf_counter() + seconds
    matrix = np.ones((48, 48), dtype=np.float32)
    while time.perf_counter() < end:
        matrix = np.tanh(matrix @ matrix)


def summarise(kind: str, work_ms: float, readings: np.ndarray) -> Cost:
    """readings: seconds [ranks, rounds, 2], the clock before and after each exchange."""
    times_us = (readings[:, :, 1].max(axis=0) - readings[:, :, 0].max(axis=0)) * 1e6
    median, p99 = np.percentile(times_us, [50, 99])
    return Cost(kind, work_ms, round(float(median), 1), round(float(times_us.mean()), 1), round(float(p99), 1))


def describe(plan: Plan, costs: list[Cost]) -> str:
    rows = [
        (f"{cost.work_ms:g} ms", cost.exchange, f"{cost.median_us:.1f}", f"{cost.mean_us:.1f}", f"{cost.p99_us:.1f}")
        for cost in costs
    ]
    return "\n\n".join(
        [
            f"{plan.rounds} rounds. Microseconds from the arrival of the last rank until all have the data, after the "
            "work that each rank does before.",
            markdown_table(["work", "exchange", "median", "mean", "p99"], rows, num_text=2),
        ]
    )


if __name__ == "__main__":
    main()
