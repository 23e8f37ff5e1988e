"""Brings the ranks of a run together; chooses the exchange between all of them and the collectives along each axis.

For experiments on one host, `Delayed...` adds the latency of a slower network. Knows nothing of what will be sent.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, is_nccl_available

from parallel.comm.base import (
    Collectives,
    Exchange,
    IsOver,
    LocalCollectives,
    LocalExchange,
    Messages,
    Traffic,
    WithoutSlots,
    never,
)
from parallel.comm.peers import await_keys
from parallel.comm.process_group import ProcessGroupCollectives, ProcessGroupExchange
from parallel.comm.rows import Table
from parallel.comm.shared_memory import SharedMemoryExchange
from parallel.comm.shared_tensors import RING_SLOTS, SharedMemoryCollectives, keeps_order
from parallel.errors import RankLost, name_ranks
from parallel.mesh import ExchangeKind, Mesh, Mode, ParallelSettings, open_store

log = logging.getLogger("lookahead")


def connect(settings: ParallelSettings, mesh: Mesh, store: Store | None = None, is_over: IsOver = never) -> Exchange:
    """Makes the exchange between all ranks of the mesh. Every rank calls this once, at about the same time.

    store: where they meet; None takes the place that the rank environment names. Raises ValueError for an exchange that
    these ranks cannot use, RankLost if the ranks do not meet within `settings.timeout_s` seconds, and EpochOver.
    """
    kind = ExchangeKind(settings.exchange)
    _check_nccl(kind, mesh.device)
    if mesh.num_ranks == 1:
        return LocalExchange()
    store = store or open_store(mesh, settings.timeout_s)
    hosts = _compare_hosts(store, mesh, list(range(mesh.num_ranks)), settings.timeout_s, is_over)
    exchange: Exchange
    match choose_exchange(kind, hosts):
        case ExchangeKind.shm:
            exchange = SharedMemoryExchange(store, mesh.rank, mesh.num_ranks, settings.timeout_s, is_over)
        case backend:
            if backend is ExchangeKind.nccl:
                _check_own_gpus(store, mesh, list(range(mesh.num_ranks)), hosts, settings.timeout_s, is_over)
            exchange = ProcessGroupExchange(
                store, mesh.rank, mesh.num_ranks, backend.value, mesh.device, settings.timeout_s, is_over
            )
    if Mode(settings.mode) is Mode.auto and mesh.degree("lp") > 1 and mesh.degree("pp") == 1:
        try:
            exchange.messages = _connect_messages(settings, mesh, exchange, store, hosts, is_over)
        except BaseException:
            exchange.close()
            raise
    return DelayedExchange(exchange, settings.delay_us) if settings.delay_us else exchange


def _connect_messages(
    settings: ParallelSettings, mesh: Mesh, exchange: Exchange, store: Store, hosts: list[str], is_over: IsOver
) -> Messages:
    """Makes the messages between all ranks: where it can be, over the connections of their exchange."""
    ranks = list(range(mesh.num_ranks))
    kind = choose_collectives(ExchangeKind(settings.exchange), hosts, mesh.device)
    if kind is ExchangeKind.nccl and not _has_own_gpus(store, mesh, ranks, hosts, settings.timeout_s, is_over):
        kind = ExchangeKind.gloo
    if isinstance(exchange, ProcessGroupExchange) and exchange.backend == kind.value:
        return exchange.make_messages(mesh.device)
    store = PrefixStore("messages", store)
    if kind is ExchangeKind.shm:
        slots = max(2, 2 * RING_SLOTS // mesh.num_ranks)  # each rank has as much memory, however many there are
        return SharedMemoryCollectives(store, ranks, mesh.rank, settings.timeout_s, is_over, slots)
    return ProcessGroupCollectives(
        store, ranks, mesh.rank, kind.value, mesh.device, settings.timeout_s, is_over=is_over
    )


def connect_axis(settings: ParallelSettings, mesh: Mesh, axis: str, store: Store | None = None) -> Collectives:
    """Makes the collectives of this rank and its peers along an axis. All ranks call this once, at about the same time.

    store: as in `connect`. Raises ValueError and RankLost as `connect` does, but never EpochOver: where each rank holds
    a part of the model, the ranks cannot change.
    """
    kind = ExchangeKind(settings.exchange)
    _check_nccl(kind, mesh.device)
    ranks = mesh.peers(axis)
    if len(ranks) == 1:
        return LocalCollectives()
    store = PrefixStore(f"{axis}/{ranks[0]}", store or open_store(mesh, settings.timeout_s))
    hosts = _compare_hosts(store, mesh, ranks, settings.timeout_s, never)
    collectives: Collectives
    match choose_collectives(kind, hosts, mesh.device):
        case ExchangeKind.shm:
            collectives = SharedMemoryCollectives(store, ranks, mesh.rank, settings.timeout_s)
        case backend:
            if backend is ExchangeKind.nccl:
                _check_own_gpus(store, mesh, ranks, hosts, settings.timeout_s, never)
            pairs = message_pairs(len(ranks)) if axis == "pp" else []
            collectives = ProcessGroupCollectives(
                store, ranks, mesh.rank, backend.value, mesh.device, settings.timeout_s, pairs
            )
            if backend is ExchangeKind.nccl:
                _tell_way(collectives, axis, is_tried=axis == "tp" and kind is ExchangeKind.auto, hosts=hosts)
    return DelayedCollectives(collectives, settings.delay_us) if settings.delay_us else collectives


def choose_collectives(kind: ExchangeKind, hosts: list[str], device: torch.device) -> ExchangeKind:
    """Resolves `auto` for tensors: NCCL on GPUs unless gloo is asked for, otherwise what the exchange would take.

    Shared memory gives way to gloo on a processor that does not keep the order of its writes.
    """
    if device.type == "cuda":
        return ExchangeKind.gloo if kind is ExchangeKind.gloo else ExchangeKind.nccl
    chosen = choose_exchange(kind, hosts)
    return ExchangeKind.gloo if chosen is ExchangeKind.shm and not keeps_order() else chosen


def choose_exchange(kind: ExchangeKind, hosts: list[str]) -> ExchangeKind:
    """Resolves `auto` for ranks on hosts (one entry per rank). Raises ValueError for shm between several hosts."""
    one_host = len(set(hosts)) == 1
    if kind is ExchangeKind.auto:
        return ExchangeKind.shm if one_host else ExchangeKind.gloo
    if kind is ExchangeKind.shm and not one_host:
        raise ValueError(
            f"parallel.exchange=shm needs all ranks on one host, but these {len(hosts)} run on {len(set(hosts))} (or "
            "in separate containers): use parallel.exchange=gloo or auto"
        )
    return kind


def identify_host() -> str:
    """Returns a text that is the same in two processes exactly if they can share memory and see each other's pids."""
    parts = [socket.gethostname()]
    boot_id, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot_id.exists() and namespace.exists():
        parts += [boot_id.read_text().strip(), os.readlink(namespace)]
    if os.path.isdir("/dev/shm"):
        parts.append(str(os.stat("/dev/shm").st_dev))
    return " ".join(parts)


def _check_nccl(kind: ExchangeKind, device: torch.device) -> None:
    if kind is ExchangeKind.nccl and not (device.type == "cuda" and is_nccl_available()):
        raise ValueError(
            f"parallel.exchange=nccl needs ranks on GPUs and a torch with NCCL, but this rank computes on {device}: "
            "use parallel.exchange=auto, or model.device=cuda"
        )


def message_pairs(num_stages: int) -> list[tuple[int, int]]:
    """Who sends messages to whom in a pipeline: each stage to the next one, and the last stage to all others."""
    last = num_stages - 1
    return [(stage, stage + 1) for stage in range(last)] + [(last, stage) for stage in range(last)]


def _tell_way(collectives: ProcessGroupCollectives, axis: str, is_tried: bool, hosts: list[str]) -> None:
    """Tries symmetric memory where it may serve, and logs how the ranks along an axis of GPUs talk."""
    if not is_tried:
        reason = ""
    elif len(set(hosts)) > 1:
        reason = "the ranks are on several hosts"
    else:
        reason = collectives.use_symmetric_memory()
    way = "NCCL, launched without waiting and captured in CUDA graphs" if axis == "tp" else "NCCL"
    if collectives.symmetric is not None:
        way += "; small sums in graphs by symmetric memory"
    log.info("%s: %s%s", axis, way, f" (no symmetric memory: {reason})" if reason else "")


def _check_own_gpus(
    store: Store, mesh: Mesh, ranks: list[int], hosts: list[str], timeout_s: float, is_over: IsOver
) -> None:
    """Raises ValueError, on all ranks, if two of them are on one GPU, which NCCL refuses."""
    gpus = _compare_gpus(store, mesh, ranks, timeout_s, is_over)
    seen: dict[tuple[str, str], int] = {}
    for rank, place in zip(ranks, zip(hosts, gpus, strict=True), strict=True):
        if (other := seen.setdefault(place, rank)) != rank:
            raise ValueError(
                f"ranks {other} and {rank} are on the same GPU, and NCCL wants one for each rank: start one rank for "
                "each GPU with model.device=cuda, or try it out, slowly, with parallel.exchange=gloo"
            )


def _has_own_gpus(
    store: Store, mesh: Mesh, ranks: list[int], hosts: list[str], timeout_s: float, is_over: IsOver
) -> bool:
    """Whether NCCL is there and no two of these ranks are on one GPU, which it refuses. All of them find the same."""
    gpus = _compare_gpus(store, mesh, ranks, timeout_s, is_over)
    return is_nccl_available() and len(set(zip(hosts, gpus, strict=True))) == len(ranks)


def _compare_gpus(store: Store, mesh: Mesh, ranks: list[int], timeout_s: float, is_over: IsOver) -> list[str]:
    """Returns the GPU of each of these ranks, all of which call this."""
    own = str(torch.cuda.get_device_properties(mesh.device).uuid)
    return _compare(store, mesh, ranks, "gpu", own, timeout_s, is_over)


def _compare_hosts(store: Store, mesh: Mesh, ranks: list[int], timeout_s: float, is_over: IsOver) -> list[str]:
    """Returns the host of each of these ranks, all of which call this."""
    return _compare(store, mesh, ranks, "host", identify_host(), timeout_s, is_over)


def _compare(
    store: Store, mesh: Mesh, ranks: list[int], what: str, own: str, timeout_s: float, is_over: IsOver
) -> list[str]:
    """Returns what each of these ranks says. All of them call this. own: what this rank says."""
    keys = {rank: f"{what}/{rank}" for rank in ranks}
    store.set(keys[mesh.rank], own)
    if late := await_keys(store, list(keys.values()), timeout_s, is_over):
        missing = tuple(rank for rank, key in keys.items() if key in late)
        raise RankLost(
            f"{name_ranks(missing)} did not come to the rendezvous within {timeout_s:g} s. See that rank's own output, "
            "then start the run again.",
            missing,
        )
    return [store.get(key).decode() for key in keys.values()]


def wait_busily(delay_us: float) -> None:
    """Occupies this core for `delay_us` microseconds, as sleeping is too coarse.

    It comes after the collective. That is pessimistic where a message is sent while its receiver still computes: a real
    network would hide some of the latency.
    """
    end = time.perf_counter() + delay_us * 1e-6
    while time.perf_counter() < end:
        pass


class DelayedExchange:
    """An `Exchange` whose collectives take `delay_us` microseconds longer."""

    def __init__(self, inner: Exchange, delay_us: float) -> None:
        self.rank = inner.rank
        self.num_ranks = inner.num_ranks
        self.traffic = inner.traffic
        self.messages = inner.messages and DelayedMessages(inner.messages, delay_us)
        self._inner = inner
        self._delay_us = delay_us

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        gathered = self._inner.all_gather(mine)
        self._wait()
        return gathered

    def gather_rows(
        self, header: tuple[int, int], own: list[np.ndarray], tables: list[Table], ranks_per_replica: int = 1
    ) -> np.ndarray:
        headers = self._inner.gather_rows(header, own, tables, ranks_per_replica)
        self._wait()
        return headers

    def broadcast(self, data: bytes | None) -> bytes:
        received = self._inner.broadcast(data)
        self._wait()
        return received

    def close(self) -> None:
        self._inner.close()

    def _wait(self) -> None:
        _wait_counted(self.traffic, self._delay_us)


class DelayedMessages:
    """`Messages` whose receiver waits `delay_us` microseconds longer."""

    def __init__(self, inner: Messages, delay_us: float) -> None:
        self.traffic = inner.traffic
        self._messages = inner
        self._delay_us = delay_us

    def send(self, tensor: Tensor, to: int) -> None:
        self._messages.send(tensor, to)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        received = self._messages.receive(shape, dtype, source)
        self._wait()
        return received

    def synchronize(self) -> None:
        self._messages.synchronize()

    def close(self) -> None:
        self._messages.close()

    def _wait(self) -> None:
        _wait_counted(self.traffic, self._delay_us)


class DelayedCollectives(DelayedMessages, WithoutSlots):
    """`Collectives` that take `delay_us` microseconds longer; for a message, only its receiver waits."""

    def __init__(self, inner: Collectives, delay_us: float) -> None:
        super().__init__(inner, delay_us)
        self.rank = inner.rank
        self.num_ranks = inner.num_ranks
        self._inner = inner

    def all_reduce(self, tensor: Tensor) -> Tensor:
        summed = self._inner.all_reduce(tensor)
        self._wait()
        return summed

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self._inner.all_gather(tensor)
        self._wait()
        return gathered

    def launching(self) -> AbstractContextManager[None]:
        return self._inner.launching()

    def deferred(self) -> AbstractContextManager[None]:
        return self._inner.deferred()

    def replayed(self, traffic: Traffic) -> None:
        self._inner.replayed(traffic)

    def agree(self, is_so: bool) -> bool:
        return self._inner.agree(is_so)


def _wait_counted(traffic: Traffic, delay_us: float) -> None:
    with traffic.counted(0, num_collectives=0):
        wait_busily(delay_us)
