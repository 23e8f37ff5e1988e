"""Starts the ranks of one measurement on this machine, and collects their results, or their failure, in a Run."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from launch.sweep.points import check_ranks
from launch.sweep.rank import Handover, JobSpec
from launch.sweep.records import Point, RankFigures, Run, TextRecord
from lp.platform.processor import processor_name

# Signals for which torch's launcher installs handlers that it does not remove.
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def share_cores(num_ranks: int, cores_per_rank: int, cores: Sequence[int]) -> tuple[list[list[int]], bool]:
    """Returns the cores of each rank, and whether there are too few.

    If there are too few cores, threads wait for each other's time slices.
    """
    groups = [cores[first : first + cores_per_rank] for first in range(0, len(cores), cores_per_rank)]
    whole = [list(group) for group in groups if len(group) == cores_per_rank] or [list(cores)]
    oversubscribed = num_ranks > len(whole) or len(whole[0]) < cores_per_rank
    return [whole[rank % len(whole)] for rank in range(num_ranks)], oversubscribed


def usable_cores(topology: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Returns the cores that this process may use, each by its first hardware thread."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        first.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return list(first.values())


def measure(point: Point, round_number: int, timeout_s: float, logs: Path) -> Run:
    """Measures a point once, on ranks of its own. Their standard error goes to files in the folder `logs`."""
    available = usable_cores()
    cores, oversubscribed = share_cores(point.ranks, point.settings["cores_per_rank"], available)
    run = Run(point.key, round_number, "done", concurrency=point.settings["concurrency"])
    run.cores, run.oversubscribed = cores, oversubscribed
    rank_logs = RankLogs(logs, f"{point.key}-{round_number}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        handover = Handover(Path(folder))
        spec = JobSpec(point.engine, point.settings, cores, timeout_s)
        handover.spec.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
        try:
            check_ranks(point, len(available))
            _launch(point.ranks, handover.folder, rank_logs)
            collect(run, handover, point.ranks)
        except (ValueError, RendezvousError) as error:
            run.status, run.error = "failed", str(error)
        except ChildFailedError as error:
            run.status, run.error = "failed", explain(error.failures, handover, timeout_s, rank_logs)
    run.wall_s = time.monotonic() - begin
    return run


class RankLogs(LogsSpecs):
    """Sends the standard error of each rank to a file of its own, and drops its standard output."""

    def __init__(self, folder: Path, name: str):
        super().__init__(str(folder))
        self.folder = folder
        self.name = name

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def of(self, rank: int) -> Path:
        return self.folder / f"{self.name}-{rank}.log"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        return LogsDest(
            stdouts=dict.fromkeys(envs, os.devnull),
            stderrs={rank: str(self.of(rank)) for rank in envs},
            error_files=dict.fromkeys(envs, os.devnull),
        )


def _launch(num_ranks: int, handover: Path, logs: RankLogs) -> None:
    """Runs the ranks until they have ended.

    Raises ChildFailedError as soon as a rank has failed; the others are then ended. Raises RendezvousError if the ranks
    do not meet.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=handover.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=logs,
    )
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the Run holds what it would log
    with _own_signal_handlers():
        # -P: imports nothing from the current folder. The launcher replaces ${local_rank}.
        elastic_launch(config, sys.executable)("-P", "-m", "launch.sweep.rank", str(handover), "${local_rank}")


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restores the handlers that torch's launcher replaces."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def collect(run: Run, handover: Handover, num_ranks: int) -> None:
    """Adds the results of the ranks to the Run."""
    values = json.loads(handover.texts.read_text(encoding="utf-8"))
    run.texts = [TextRecord(**text) for text in values["texts"]]
    run.accepted_lengths, run.rows, run.seconds = values["accepted_lengths"], values["rows"], values["seconds"]
    files = [handover.figures(rank) for rank in range(num_ranks)]
    run.ranks = [RankFigures(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def explain(failures: Mapping[int, ProcessFailure], handover: Handover, timeout_s: float, logs: RankLogs) -> str:
    """Returns the error message of the rank that failed first, or how that rank ended."""

    def moment(failure: ProcessFailure) -> float:
        said = handover.error(failure.local_rank)
        return said.stat().st_mtime if said.exists() else failure.timestamp

    if any(failure.exitcode == -signal.SIGALRM for failure in failures.values()):
        return f"not done after point_timeout_s={timeout_s:g}"
    by_itself = [
        failure for failure in failures.values() if failure.exitcode != -signal.SIGTERM
    ]  # the launcher sends SIGTERM
    first = min(by_itself or failures.values(), key=moment)
    rank, said = first.local_rank, handover.error(first.local_rank)
    if said.exists():
        return said.read_text(encoding="utf-8")
    code = first.exitcode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {how}; what it said is in {logs.folder.name}/{logs.of(rank).name}"


def describe_hardware() -> dict[str, Any]:
    """Describes the machine of this process, in JSON values."""
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "cpu": processor_name(),
        "cores": len(usable_cores()),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
