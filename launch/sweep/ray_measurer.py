"""Measures the points of a sweep on ranks that Ray places, for `launcher=ray` of launch/bench.py.

A point waits until the cores and GPUs of its ranks are free, and holds them while it is measured. Its ranks meet as
they do under torchrun, so the same is measured; but they may run on several nodes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from launch.cluster.demand import resolve_demand
from launch.cluster.nodes import (
    Reservation,
    absolute_name,
    check_nodes,
    join_cluster,
    read_resources,
    shorten_ray_error,
)
from launch.cluster.settings import RaySettings
from launch.sweep.points import check_ranks
from launch.sweep.rank import Handover, JobSpec
from launch.sweep.ranks import RankLogs, collect, describe_hardware, explain, share_cores, usable_cores
from launch.sweep.records import Point, Run


class PointRank:
    """An actor with two threads, so that it can be stopped while it runs."""

    def __init__(self, rank: int):
        self._rank = rank
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"rank {self._rank}"

    def describe(self) -> dict[str, Any]:
        """The node's id, the cores that ranks may be pinned to, and the hardware that is reported with every figure."""
        node = ray.get_runtime_context().get_node_id()
        return {"node": node, "cores": usable_cores(), "hardware": describe_hardware()}

    def host_store(self, num_ranks: int) -> tuple[str, int]:
        """Opens the Store at which the ranks meet, on a free port, and keeps it open. Returns its host and port."""
        host = ray.util.get_node_ip_address()
        listener = socket.create_server((host, 0), backlog=num_ranks)  # without a listener, a Store binds all addresses
        self._store = TCPStore(
            host,
            listener.getsockname()[1],
            num_ranks,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return host, self._store.port

    def run(self, spec: str, environment: dict[str, str]) -> dict[str, Any]:
        """Runs the rank to its end. spec: a JobSpec as JSON. Returns its pid, its exit code, what it wrote to standard
        error ("log"), and the texts of the files it wrote.
        """
        with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
            handover = Handover(Path(folder))
            handover.spec.write_text(spec, encoding="utf-8")
            with open(handover.folder / "log", "w+b") as standard_error:
                # -P: do not import from the current folder
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "launch.sweep.rank", folder, str(self._rank)],
                    env={**os.environ, **environment},
                    stdout=subprocess.DEVNULL,
                    stderr=standard_error,
                )
                if self._stopped:
                    self._process.terminate()
                code = self._process.wait()
                standard_error.seek(0)
                log = standard_error.read().decode("utf-8", "replace")
            written = (handover.figures(self._rank), handover.texts, handover.error(self._rank))
            files = {path.name: path.read_text(encoding="utf-8") for path in written if path.exists()}
        return {"pid": self._process.pid, "exit_code": code, "log": log, "files": files}

    def stop(self) -> None:
        """Ends the rank early."""
        self._stopped = True
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


# Ranks end themselves after point_timeout_s. If one still runs this many seconds later, its node counts as lost.
LATE_S = 30.0
# The groups of settings that have a `path` which the ranks read.
FILES = ("model", "workload")


class RayMeasurer:
    """Joins the cluster and measures points on it, one at a time."""

    def __init__(self, settings: RaySettings):
        """Raises ValueError if the cluster cannot be joined."""
        settings.check()
        self._settings = settings
        join_cluster(settings.address)

    def measure(self, point: Point, round_number: int, timeout_s: float, logs: Path) -> Run:
        """Measures a point once, as launch.sweep.ranks.measure does, but on ranks that Ray places."""
        run = Run(point.key, round_number, "done", concurrency=point.settings["concurrency"])
        rank_logs = RankLogs(logs, f"{point.key}-{round_number}")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder, _terminating_as_interrupt():
            handover = Handover(Path(folder))
            try:
                begin = self._run_ranks(point, run, timeout_s, handover, rank_logs)
                collect(run, handover, point.ranks)
            except (ValueError, RayError) as error:
                run.status, run.error = "failed", shorten_ray_error(error)
            except ChildFailedError as error:
                run.status, run.error = "failed", explain(error.failures, handover, timeout_s, rank_logs)
        run.wall_s = time.monotonic() - begin
        return run

    def _run_ranks(self, point: Point, run: Run, timeout_s: float, handover: Handover, logs: RankLogs) -> float:
        """Runs the ranks to their end. Returns when they began, by time.monotonic(): the wait for resources does not
        count as part of the measurement.
        """
        settings = _for_all_nodes(point.settings)
        cores, device = float(settings["cores_per_rank"]), settings["model"]["device"]
        available = read_resources().nodes
        demand = resolve_demand(point.ranks, cores, self._settings.placement, device, available)
        settings["model"]["device"] = demand.device
        reservation = Reservation(demand)
        try:
            reservation.queue(self._settings.ready_s)
            check_nodes(reservation, settings["model"]["path"], self._settings.ready_s)
            ranks = [_start(reservation, rank) for rank in range(point.ranks)]
            spec = JobSpec(point.engine, settings, self._assign_cores(point, run, ranks), timeout_s)
            begin = time.monotonic()
            _run_to_end(ranks, spec, handover, logs)
            return begin
        finally:
            reservation.release()

    def _assign_cores(self, point: Point, run: Run, ranks: list[Any]) -> list[list[int]]:
        """Shares the cores of each node among its ranks. Returns the cores of each rank, and notes them in the run."""
        nodes = ray.get([rank.describe.remote() for rank in ranks])
        check_ranks(point, sum(len(cores) for cores in {node["node"]: node["cores"] for node in nodes}.values()))
        run.hardware = {**nodes[0]["hardware"], "nodes": len({node["node"] for node in nodes})}
        for node in {node["node"]: node for node in nodes}.values():
            local = [rank for rank, other in enumerate(nodes) if other["node"] == node["node"]]
            shares, oversubscribed = share_cores(len(local), point.settings["cores_per_rank"], node["cores"])
            run.oversubscribed |= oversubscribed
            for rank, share in zip(local, shares, strict=True):
                nodes[rank]["cores"] = share
        run.cores = [node["cores"] for node in nodes]
        return run.cores


def _for_all_nodes(settings: dict[str, Any]) -> dict[str, Any]:
    """A copy that names files by their absolute paths, because ranks do not run in this program's folder."""
    copied = json.loads(json.dumps(settings))
    for group in FILES:
        if copied[group].get("path"):
            copied[group]["path"] = absolute_name(copied[group]["path"])
    if copied.get("assistant"):
        copied["assistant"] = absolute_name(copied["assistant"])
    return copied


def _start(reservation: Reservation, rank: int) -> Any:
    """Starts the rank's actor in the rank's bundle."""
    demand = reservation.demand
    options: dict[str, Any] = {"num_cpus": demand.cpus, "num_gpus": demand.gpus, "max_concurrency": 2}
    return ray.remote(PointRank).options(**options, scheduling_strategy=reservation.strategy(rank)).remote(rank)


def _run_to_end(ranks: list[Any], spec: JobSpec, handover: Handover, logs: RankLogs) -> None:
    """Runs the ranks and puts what they write into `handover` and `logs`. As soon as one fails, ends the others; then
    raises ChildFailedError.
    """
    host, port = ray.get(ranks[0].host_store.remote(len(ranks)))
    text = json.dumps(dataclasses.asdict(spec))
    running: dict[Any, int] = {
        actor.run.remote(text, _environment(rank, len(ranks), host, port)): rank for rank, actor in enumerate(ranks)
    }
    failures: dict[int, ProcessFailure] = {}
    deadline = time.monotonic() + spec.timeout_s + LATE_S
    while running:
        done, _ = ray.wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise ValueError(f"not done after point_timeout_s={spec.timeout_s:g}, and a node no longer answers")
        rank = running.pop(done[0])
        failure = _store_result(done[0], rank, handover, logs)
        if failure and not failures:
            for other in running.values():
                ranks[other].stop.remote()
        if failure:
            failures[rank] = failure
    if failures:
        raise ChildFailedError("rank", failures)


def _store_result(reference: ray.ObjectRef, rank: int, handover: Handover, logs: RankLogs) -> ProcessFailure | None:
    """Writes a rank's result into files. Returns how the rank failed, None if it did not."""
    try:
        result = ray.get(reference)
    except RayError as error:
        handover.error(rank).write_text(f"rank {rank} was lost: {' '.join(str(error).split())}", encoding="utf-8")
        return ProcessFailure(rank, 0, -signal.SIGKILL, os.devnull)
    logs.folder.mkdir(parents=True, exist_ok=True)
    logs.of(rank).write_text(result["log"], encoding="utf-8")
    for name, content in result["files"].items():
        (handover.folder / name).write_text(content, encoding="utf-8")
    return ProcessFailure(rank, result["pid"], result["exit_code"], os.devnull) if result["exit_code"] else None


def _environment(rank: int, num_ranks: int, host: str, port: int) -> dict[str, str]:
    """The variables by which a rank finds the others. Each is local rank 0 of 1, as Ray shows it only its own GPU."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


@contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Treats SIGTERM, by which `ray job stop` ends a job, as Ctrl-C: finished measurements are kept and reported."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
