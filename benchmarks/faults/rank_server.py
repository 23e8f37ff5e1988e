"""A server that starts its own ranks (`launcher=local`, or on a Ray cluster), as a process, and what may be done to it
from outside. All its ranks are processes of this machine.

Known by its command line, its log, GET /status and the process ids found there; by nothing of its inside.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
START_S = 180.0
"""What a server gets to start, and lost ranks to be back: on few cores their imports take turns."""
STOP_S = 40.0
LEAVE_S = 5.0
"""What its ranks get to be gone after it."""
LOOK_S = 0.05
"""How often a condition is looked at."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_PREFIX = "lookahead-parallel-"


class ServerTrouble(Exception):
    """The server did not do what a measurement rests on; its message holds the end of the server's log."""


@dataclass(frozen=True)
class Member:
    """One rank as GET /status shows it. pid: None while it has no process."""

    rank: int
    state: str
    pid: int | None


@dataclass(frozen=True)
class Status:
    """epoch: None while nobody serves."""

    epoch: int | None
    ranks: list[Member]

    @property
    def pids(self) -> dict[int, int]:
        """Of the ranks that take part in the steps."""
        return {member.rank: member.pid for member in self.ranks if member.state == "serving" and member.pid}


class RankServer:
    """The server with `num_ranks` ranks, once it has said where it listens."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, num_ranks: int):
        self.process = process
        self.num_ranks = num_ranks
        self._log = log
        self.url = self._find_address()
        self._client = httpx.Client(base_url=self.url, timeout=10.0)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def status(self) -> Status:
        body: dict[str, Any] = self._client.get("/status").raise_for_status().json()
        members = [Member(member["rank"], member["state"], member.get("pid")) for member in body["ranks"]]
        return Status(body["epoch"], sorted(members, key=lambda member: member.rank))

    def wait_until(self, holds: Callable[[Status], bool], what: str, within_s: float = START_S) -> Status:
        """The status for which the condition holds. Raises ServerTrouble if that takes longer than `within_s`."""
        deadline = time.monotonic() + within_s
        while not holds(status := self.status()):
            self._check_alive()
            if time.monotonic() > deadline:
                raise self._trouble(f"not within {within_s:g} s: {what}; last seen: {status}")
            time.sleep(LOOK_S)
        return status

    def wait_for_all(self, gone: Sequence[int] = (), within_s: float = START_S) -> None:
        """Until all ranks serve, none of them as one of the processes `gone`."""

        def all_serve(status: Status) -> bool:
            return len(status.pids) == self.num_ranks and not set(gone) & set(status.pids.values())

        self.wait_until(all_serve, "all ranks serve", within_s)

    def signal(self, ranks: Sequence[int], number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Sends a signal to the processes of these ranks, all at once, when all serve; gives their process ids."""
        status = self.wait_until(lambda status: status.pids.keys() >= {*ranks}, f"ranks {[*ranks]} serve")
        pids = [status.pids[rank] for rank in ranks]
        for pid in pids:
            os.kill(pid, number)
        return pids

    def stop(self) -> None:
        """Ends the server as an operator does, with SIGTERM. Raises ServerTrouble unless it ends well and alone."""
        processes = [*{*self.family(), *self._rank_processes()}]
        self._client.close()
        self.process.terminate()
        try:
            code = self.process.wait(STOP_S)
            _, left = psutil.wait_procs(processes, timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            raise self._trouble(f"it did not end within {STOP_S:g} s of SIGTERM") from None
        finally:
            kill_processes(processes)
        if code or left:
            raise self._trouble(f"it ended with exit code {code}, and {len(left)} processes were left")

    def family(self) -> list[psutil.Process]:
        """The server's process and all that it has started."""
        return family(self.process.pid)

    def _rank_processes(self) -> list[psutil.Process]:
        """On a Ray cluster they are no children of the server's process."""
        found = []
        for pid in self.status().pids.values():
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def _find_address(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if found := re.search(r"\bserving .* on (http://\S+)$", self.log, re.MULTILINE):
                return found[1]
            self._check_alive()
            time.sleep(LOOK_S)
        raise self._trouble(f"it did not say within {START_S:g} s where it listens")

    def _check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            raise self._trouble(f"it ended with exit code {code}")

    def _trouble(self, what: str) -> ServerTrouble:
        return ServerTrouble(f"the server: {what}. Its log ends:\n{self.log[-2000:]}")


class Launcher(StrEnum):
    """What starts the ranks. ray: the cluster that RAY_ADDRESS names, or that of this machine (`ray start --head`)."""

    local = "local"
    ray = "ray"


def serve_command(model: Path, num_ranks: int, *settings: str, launcher: Launcher = Launcher.local) -> list[str]:
    """settings: `key=value`, after those that name the model and the ranks."""
    programs = {Launcher.local: ["serve.py", "launcher=local"], Launcher.ray: ["ray_job.py", "task=serve"]}
    program, argument = programs[launcher]
    command = [sys.executable, str(LAUNCH / program), argument, "model=checkpoint", f"model.path={model.resolve()}"]
    return [*command, f"parallel.ranks={num_ranks}", "server.port=0", *settings]


@contextmanager
def started(model: Path, num_ranks: int, *settings: str, launcher: Launcher = Launcher.local) -> Iterator[RankServer]:
    """A server all of whose ranks serve; what is left of it at the end is killed. Raises ServerTrouble."""
    command = serve_command(model, num_ranks, *settings, launcher=launcher)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            server = RankServer(process, log, num_ranks)
            server.wait_for_all()
            yield server
        finally:
            kill_processes(family(process.pid))
            process.wait()


@contextmanager
def serving(model: Path, num_ranks: int, *settings: str, launcher: Launcher = Launcher.local) -> Iterator[RankServer]:
    """As `started`, and ended as an operator does it. Raises ServerTrouble if it does not end well, too."""
    with started(model, num_ranks, *settings, launcher=launcher) as server:
        yield server
        server.stop()


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_processes(processes: list[psutil.Process]) -> None:
    """Those that still run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def shared_memory_files() -> set[str]:
    """Names of the runtime's files in shared memory, on systems where such files need names."""
    return {path.name for path in SHARED_MEMORY.glob(f"{SHARED_MEMORY_PREFIX}*")}


def count_mappings(process: psutil.Process) -> int:
    """Of the runtime's shared memory, by this process; none if it has ended."""
    try:
        return Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").count(SHARED_MEMORY_PREFIX)
    except OSError:
        return 0
