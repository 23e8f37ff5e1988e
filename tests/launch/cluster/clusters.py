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

# For a cluster's processes and its drivers: nobody else on the machine can use them, and nothing leaves the machine.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "t" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
JOB = str(commands.CHECKOUT / "launch" / "ray_job.py")


@dataclass
class Job:
    """How launch/ray_job.py ended."""

    exit_code: int
    out: str
    err: str


@dataclass
class LocalCluster:
    """A head without cores, and nodes 127.0.0.3, 127.0.0.4, ...

    host: the process that runs it, see host.py. log: the file with that process's standard error.
    """

    host: subprocess.Popen[str]
    log: Path
    address: str = ""
    dashboard: str = ""
    drivers: list[subprocess.Popen[str]] = field(default_factory=list)

    def await_start(self) -> None:
        self.address = self._read_answer()

    def remove(self, address: str) -> None:
        """Kills the node with this IP address, and all that runs there."""
        self._ask(f"remove {address}")

    def await_nothing_left(self, limit_s: float = 15.0) -> None:
        """Fails unless all resources and placement groups are released within `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while (left := self._ask("left")) != {"used": 0, "groups": []}:
            assert time.monotonic() < deadline, f"still reserved: {left}"
            time.sleep(0.2)

    def start(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """Starts launch/ray_job.py on this cluster, with its output piped.

        variables: added to its environment.
        """
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
        """Process ids of the cluster's actors whose class, or class and method, begins with `name`."""
        found = set()
        for process in psutil.Process(self.host.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the process has just ended
                if " ".join(process.cmdline()).startswith(f"ray::{name}"):
                    found.add(process.pid)
        return found

    def ray(self, *arguments: str, timeout_s: float = 150.0) -> subprocess.CompletedProcess[str]:
        """Runs Ray's own command line against the cluster's dashboard: `ray job submit ...`."""
        command = [str(Path(sys.executable).with_name("ray")), *arguments]
        environment = {**os.environ, **ENVIRONMENT, "RAY_API_SERVER_ADDRESS": self.dashboard}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)

    def _ask(self, command: str) -> Any:
        assert self.host.stdin
        with suppress(BrokenPipeError):  # the host has ended; _read_answer shows why
            self.host.stdin.write(command + "\n")
            self.host.stdin.flush()
        return self._read_answer()

    def _read_answer(self) -> Any:
        assert self.host.stdout
        line = self.host.stdout.readline()
        assert line, f"the cluster has ended; its last lines on standard error:\n{last_lines(self.log)}"
        return json.loads(line)


def last_lines(log: Path, limit: int = 40) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-limit:])


@contextmanager
def local_cluster(cores: Sequence[int], gpus: Sequence[int] = (), takes_jobs: bool = False) -> Iterator[LocalCluster]:
    """A cluster with one node for each entry of `cores`, with that many cores, and with pretended GPUs."""
    # The name is short because sockets lie in the folder, and their paths may have at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="lpr-"))
    port = free_port() if takes_jobs else 0
    amounts = [",".join(map(str, numbers)) for numbers in (cores, gpus or [0] * len(cores))]
    log = folder / "host.log"
    with log.open("wb") as standard_error:
        host = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.cluster.host", str(port), *amounts],
            cwd=commands.CHECKOUT,
            env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=standard_error,
            text=True,
        )
    cluster = LocalCluster(host, log, dashboard=f"http://127.0.0.2:{port}")
    try:
        cluster.await_start()
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
