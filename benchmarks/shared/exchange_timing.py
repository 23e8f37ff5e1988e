"""Times all-gathers between ranks of this host, which take turns by kind of exchange.

Each rank computes for a while, as in a decoding step, and then exchanges. The cost of one exchange is the time from the
arrival of the last rank until every rank has the data: the exchange is not charged for the ranks' different arrivals.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch.distributed import TCPStore

from benchmarks.shared.ranks import run_ranks
from parallel.comm.base import Exchange
from parallel.comm.connect import connect
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh

BLOCK = 10  # exchanges of one kind in a row

# One rank's clock before and after each exchange, by the kind of exchange and the milliseconds of work before it.
ClockReadings: TypeAlias = dict[tuple[str, float], list[tuple[float, float]]]


@dataclass(frozen=True)
class ExchangePlan:
    """What to measure.

    kinds: exchanges to compare. num_bytes: sent by each rank. work_ms: times that a rank is busy before an exchange.
    rounds: exchanges for each kind and busy time.
    """

    ranks: int
    kinds: list[str]
    num_bytes: int
    work_ms: list[float]
    rounds: int


@dataclass(frozen=True)
class ExchangeCost:
    """Microseconds of one all-gather, from the arrival of the last rank until all have the data."""

    exchange: str
    work_ms: float
    median_us: float
    mean_us: float
    p99_us: float


def measure_exchanges(plan: ExchangePlan) -> list[ExchangeCost]:
    """Starts the ranks as processes and compares their clock readings."""
    stores = {kind: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for kind in plan.kinds}
    readings = run_ranks(run_rank, plan.ranks, plan, {kind: store.port for kind, store in stores.items()})
    return [
        summarise(kind, work_ms, np.array([reading[kind, work_ms] for reading in readings]))
        for work_ms in plan.work_ms
        for kind in plan.kinds
    ]


def run_rank(rank: int, plan: ExchangePlan, ports: dict[str, int]) -> ClockReadings:
    """One rank's process."""
    torch.set_num_threads(1)
    exchanges = {kind: connect_at(rank, plan, kind, port) for kind, port in ports.items()}
    readings: ClockReadings = {(kind, work_ms): [] for kind in plan.kinds for work_ms in plan.work_ms}
    for work_ms in plan.work_ms:
        for _ in range(0, plan.rounds, BLOCK):
            for kind, exchange in exchanges.items():
                block = [time_one(exchange, plan.num_bytes // 4, work_ms) for _ in range(1 + BLOCK)]
                readings[kind, work_ms] += block[1:]  # the first shows how the ranks left the other exchange
    for exchange in exchanges.values():
        exchange.close()
    return readings


def connect_at(rank: int, plan: ExchangePlan, kind: str, port: int) -> Exchange:
    """Connects a rank to the others. port: of the store at which the ranks of this exchange meet."""
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
    """Computes for `work_ms`, then exchanges. Returns the clock before and after the exchange.

    All processes of a host read the same clock.
    """
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


def summarise(kind: str, work_ms: float, readings: np.ndarray) -> ExchangeCost:
    """readings: seconds [ranks, rounds, 2], the clock before and after each exchange."""
    times_us = (readings[:, :, 1].max(axis=0) - readings[:, :, 0].max(axis=0)) * 1e6
    median, p99 = np.percentile(times_us, [50, 99])
    return ExchangeCost(kind, work_ms, round(float(median), 1), round(float(times_us.mean()), 1), round(float(p99), 1))
