"""A rank that measures how long the exchanges of a step take; rank 0 writes the figures to the file that is named.

python -P -m launch.checkup.exchange FILE     # started by launch/checkup/links.py, with the environment of a rank
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from torch.distributed import PrefixStore

from parallel.comm.connect import connect
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh, open_store

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
