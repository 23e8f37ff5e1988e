"""Ray clusters of simulated nodes on this machine: their own folder, loopback addresses, a token of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.launch import commands
from tests.parallel.ranks import free_port

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "t" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Of a cluster's processes and its drivers: nobody else on the machine can use it, and nothing leaves the machine."""
JOB = str(commands.CHECKOUT / "launch" / "ray_job.py")


@dataclass
class Job:
    """How launch/ray_job.py ended."""

    exit_code: int
    out: str
    err: str


@dataclass
class LocalCluster:
    """A head without cores, and nodes 127.0.0.3, 127.0.0.4, ..."""

    host: subprocess.Popen[str]
    address: str = ""
    dashboard: str = ""
    drivers: list[subprocess.Popen[str]] = field(default_factory=list)

    def remove(self, address: str) -> None:
        """Kills the node with this IP address, and all that runs there."""
        self._ask(f"remove {address}")

    def await_nothing_left(self, limit_s: float = 15.0) -> None:
        """Fails unless all resources and placement groups are given back within `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while (left := self._ask("left")) != {"used": 0, "groups": []}:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.2)

    def start(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """launch/ray_job.py on this cluster, with its output piped. variables: of its environment."""
        process = subprocess.Popen(
            [sys.executable, JOB, f"ray.address={self.address}", *arguments],
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.drivers.append(process)
        return process

    def run(self, *arguments: str, cwd: Path, timeout_s: float = 90.0, **variables: str) -> Job:
        process = self.start(*arguments, cwd=cwd, **variables)
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        return Job(process.returncode, out, err)

    def actors(self, name: str) -> set[int]:
        """Process ids of the cluster's actors of a class."""
        found = set()
        for process in psutil.Process(self.host.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if " ".join(process.cmdline()).startswith(f"ray::{name}"):
                    found.add(process.pid)
        return found

    def ray(self, *arguments: str, timeout_s: float = 150.0) -> subprocess.CompletedProcess[str]:
        """Ray's own command line, at the cluster's dashboard: `ray job submit ...`."""
        command = [str(Path(sys.executable).with_name("ray")), *arguments]
        environment = {**os.environ, **ENVIRONMENT, "RAY_API_SERVER_ADDRESS": self.dashboard}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)

    def _ask(self, command: str) -> Any:
        return ask(self.host, command)


def ask(host: subprocess.Popen[str], command: str = "") -> Any:
    assert host.stdin and host.stdout
    if command:
        host.stdin.write(command + "\n")
        host.stdin.flush()
    line = host.stdout.readline()
    assert line, "the cluster has ended"
    return json.loads(line)


@contextmanager
def local_cluster(cores: Sequence[int], gpus: Sequence[int] = (), takes_jobs: bool = False) -> Iterator[LocalCluster]:
    """A cluster with a node for each entry, with as many cores, and pretended GPUs."""
    folder = tempfile.mkdtemp(prefix="lpr-")  # short, as it holds sockets, whose paths may have 107 characters
    port = free_port() if takes_jobs else 0
    amounts = [",".join(map(str, numbers)) for numbers in (cores, gpus or [0] * len(cores))]
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.cluster.host", folder, str(port), *amounts],
        cwd=commands.CHECKOUT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    cluster = LocalCluster(host, dashboard=f"http://127.0.0.2:{port}")
    try:
        cluster.address = ask(host)
        yield cluster
    finally:
        for driver in cluster.drivers:
            driver.kill()
            driver.wait()
        assert host.stdin
        host.stdin.close()
        try:
            host.wait(60)
        finally:
            host.kill()
            shutil.rmtree(folder, ignore_errors=True)
