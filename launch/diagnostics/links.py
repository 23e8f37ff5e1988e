"""How fast ranks and GPUs of this machine talk: round trips between processes, copies between GPUs.

    python -P -m launch.diagnostics.links FILE

is one of the ranks that measure the exchanges of a step; rank 0 writes the figures to FILE.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch.distributed import PrefixStore

from launch.cli.ranks import run_processes
from launch.diagnostics.findings import Finding
from launch.diagnostics.machine import READ_BYTES, copy_s
from parallel.comm.connect import connect
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh, open_store

SECTION = "links"


def between_ranks(num_ranks: int) -> Iterator[Finding]:
    """The time of one exchange of a step's integers between ranks, by shared memory and by gloo."""
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        path = Path(folder) / "microseconds.json"
        code = run_processes([sys.executable, "-P", "-m", "launch.diagnostics.links", str(path)], num_ranks)
        if code or not path.exists():
            text = f"{num_ranks} ranks on this machine cannot talk (exit code {code}); what they say stands above"
            yield Finding(SECTION, "ranks", text, is_broken=True)
            return
        measured: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    for kind, microseconds in measured.items():
        use = "used on one machine" if kind == "shm" else "used between machines"
        text = f"{microseconds:.0f} us an exchange between {num_ranks} ranks ({use})"
        yield Finding(SECTION, kind, text, {"ranks": num_ranks, "microseconds": microseconds})


def between_gpus(num_bytes: int = READ_BYTES) -> Iterator[Finding]:
    """The speed of copies between each two GPUs, and whether they go straight from one to the other."""
    if not torch.cuda.is_available():
        return
    for one, other in combinations(range(torch.cuda.device_count()), 2):
        speed = num_bytes / copy_s(torch.device("cuda", one), torch.device("cuda", other), num_bytes)
        is_direct = torch.cuda.can_device_access_peer(one, other)
        how = "straight" if is_direct else "through the host's memory"
        value = {"bytes_per_s": speed, "is_direct": is_direct}
        yield Finding(SECTION, f"cuda:{one} to cuda:{other}", f"{speed / 1e9:.1f} GB/s, {how}", value)


# Integers of one exchange, as a step of some rows has; exchanges that are measured, and those before them.
NUM_INTEGERS, NUM_EXCHANGES, NUM_FIRST = 64, 300, 50


def main(path: Path) -> None:
    settings = ParallelSettings(timeout_s=30.0, threads=1)
    mesh = make_mesh(settings, "cpu")
    store = open_store(mesh, settings.timeout_s)
    figures = {}
    for kind in (ExchangeKind.shm, ExchangeKind.gloo):
        own = ParallelSettings(exchange=kind, timeout_s=settings.timeout_s)
        exchange = connect(own, mesh, PrefixStore(kind.value, store))
        integers, seconds = np.zeros(NUM_INTEGERS, np.int32), []
        for _ in range(NUM_FIRST + NUM_EXCHANGES):
            begin = time.perf_counter()
            exchange.all_gather(integers)
            seconds.append(time.perf_counter() - begin)
        exchange.close()
        figures[kind.value] = 1e6 * statistics.median(seconds[NUM_FIRST:])
    if mesh.rank == 0:
        path.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
