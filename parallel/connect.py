"""Brings the ranks of a run together and chooses the exchange between them.

Knows nothing of what will be exchanged.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import DistError, Store, is_nccl_available

from parallel.exchange import Exchange, RankLost, name_ranks
from parallel.local import LocalExchange
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from parallel.process_group import ProcessGroupExchange
from parallel.shared_memory import SharedMemoryExchange


def connect(settings: ParallelSettings, mesh: Mesh) -> Exchange:
    """The exchange between all ranks of the mesh; every rank calls this once, at about the same time.

    Raises ValueError for an exchange that these ranks cannot use, RankLost if the ranks do not meet within
    `settings.timeout_s` seconds.
    """
    kind = ExchangeKind(settings.exchange)
    _check_nccl(kind, mesh.device)
    if mesh.num_ranks == 1:
        return LocalExchange()
    store = open_store(mesh, settings.timeout_s)
    hosts = _compare_hosts(store, mesh, settings.timeout_s)
    match choose_exchange(kind, hosts):
        case ExchangeKind.shm:
            return SharedMemoryExchange(store, mesh.rank, mesh.num_ranks, settings.timeout_s)
        case backend:
            return ProcessGroupExchange(
                store, mesh.rank, mesh.num_ranks, backend.value, mesh.device, settings.timeout_s
            )


def choose_exchange(kind: ExchangeKind, hosts: list[str]) -> ExchangeKind:
    """Settles `auto` for ranks on these hosts (one entry for each rank), and refuses shm between several hosts."""
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
    """Equal for two processes exactly if they can share memory through a file and see each other's process ids."""
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


def _compare_hosts(store: Store, mesh: Mesh, timeout_s: float) -> list[str]:
    keys = [f"host/{rank}" for rank in range(mesh.num_ranks)]
    store.set(keys[mesh.rank], identify_host())
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except DistError as error:
        missing = tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
        raise RankLost(
            f"{name_ranks(missing)} did not come to the rendezvous within {timeout_s:g} s. See that rank's own output, "
            "then start the run again.",
            missing,
        ) from error
    return [store.get(key).decode() for key in keys]
