"""Times the exchanges of steps between ranks of this host, which take turns by kind of exchange.

Each rank computes for a while, as in a decoding step, and then exchanges its rows of a table. The cost of one exchange
is the time from the arrival of the last rank until every rank has the data: the exchange is not charged for the ranks'
different arrivals.
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
from parallel.comm.channel import Channel
from parallel.comm.connect import connect
from parallel.comm.rows import Table
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh

BLOCK = 10  # exchanges of one kind in a row

# One rank's clock before and after each exchange, by the kind of exchange and the milliseconds of work before it.
ClockReadings: TypeAlias = dict[tuple[str, float], list[tuple[float, float]]]


@dataclass(frozen=True)
class ExchangePlan:
    """What to measure.

    kinds: exchanges to compare. num_bytes: of each rank's rows. work_ms: times that a rank is busy before an exchange.
    rounds: exchanges for each kind and busy time. evict_mb: megabytes that a rank then reads and writes, so that its
    caches hold nothing else.
    """

    ranks: int
    kinds: list[str]
    num_bytes: int
    work_ms: list[float]
    rounds: int
    evict_mb: int = 0


@dataclass(frozen=True)
class ExchangeCost:
    """Microseconds of one exchange, from the arrival of the last rank until all have the data."""

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
    channels = {kind: Channel(connect_at(rank, plan, kind, port)) for kind, port in ports.items()}
    evicted = np.zeros(plan.evict_mb << 18, np.float32)
    readings: ClockReadings = {(kind, work_ms): [] for kind in plan.kinds for work_ms in plan.work_ms}
    for work_ms in plan.work_ms:
        for _ in range(0, plan.rounds, BLOCK):
            for kind, channel in channels.items():
                block = [time_one(channel, plan.num_bytes // 4, work_ms, evicted) for _ in range(1 + BLOCK)]
                readings[kind, work_ms] += block[1:]  # the first shows how the ranks left the other exchange
    for channel in channels.values():
        channel.close()
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


def time_one(channel: Channel, num_rows: int, work_ms: float, evicted: np.ndarray) -> tuple[float, float]:
    """Computes for `work_ms`, then exchanges. Returns the clock before and after the exchange.

    All processes of a host read the same clock.
    """
    mine = np.arange(num_rows, dtype=np.int32)[:, None]
    senders = {
        rank: list(range(rank, channel.num_ranks * num_rows, channel.num_ranks)) for rank in range(channel.num_ranks)
    }
    compute_for(work_ms / 1e3)
    evicted += 1
    begin = time.perf_counter()
    table = Table(senders, np.empty((channel.num_ranks * num_rows, 1), np.int32))
    channel.gather_rows([mine], [table])
    end = time.perf_counter()
    assert (table.numbers == mine.repeat(channel.num_ranks, axis=0)).all(), "an exchange delivered the wrong integers"
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
