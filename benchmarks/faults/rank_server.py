"""A server process that starts its own ranks (`launcher=local`, or on a Ray cluster), watched and killed from outside.

All its ranks are processes of this machine. This module uses only the command line, the log, GET /status and the
process ids shown there; it imports nothing of the server.
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
# Seconds that a server may take to start, and lost ranks to come back: on few cores their imports take turns.
START_S = 180.0
STOP_S = 180.0
# Seconds that the ranks may take to end after their server.
LEAVE_S = 30.0
# Seconds between two checks of a condition.
LOOK_S = 0.05
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_PREFIX = "lookahead-parallel-"


class ServerTrouble(Exception):
    """The server did not do what a measurement needs. The message holds the end of the server's log."""


@dataclass(frozen=True)
class RankStatus:
    """One rank as GET /status shows it. pid: None while it has no process."""

    rank: int
    state: str
    pid: int | None


@dataclass(frozen=True)
class ServerStatus:
    """What GET /status shows. epoch: None while no rank serves. divided: whether each serves requests of its own."""

    epoch: int | None
    divided: bool
    ranks: list[RankStatus]

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the ranks that take part in the steps, by rank."""
        return {member.rank: member.pid for member in self.ranks if member.state == "serving" and member.pid}


class RankServer:
    """A server with `num_ranks` ranks. The constructor waits until the server's log shows its address."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, num_ranks: int):
        self.process = process
        self.num_ranks = num_ranks
        self._log = log
        self.url = self._find_address()
        self._client = httpx.Client(base_url=self.url, timeout=60.0)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def status(self) -> ServerStatus:
        body: dict[str, Any] = self._client.get("/status").raise_for_status().json()
        members = [RankStatus(member["rank"], member["state"], member.get("pid")) for member in body["ranks"]]
        return ServerStatus(body["epoch"], body["divided"], sorted(members, key=lambda member: member.rank))

    def wait_until(self, holds: Callable[[ServerStatus], bool], what: str, within_s: float = START_S) -> ServerStatus:
        """Waits for a status for which `holds` is true. Raises ServerTrouble if that takes longer than `within_s`.

        what: the condition in words.
        """
        deadline = time.monotonic() + within_s
        while not holds(status := self.status()):
            self._check_alive()
            if time.monotonic() > deadline:
                raise self._trouble(f"not within {within_s:g} s: {what}; last seen: {status}")
            time.sleep(LOOK_S)
        return status

    def wait_for_all(self, gone: Sequence[int] = (), within_s: float = START_S) -> None:
        """Waits until all ranks serve and none of them is one of the processes `gone`."""

        def all_serve(status: ServerStatus) -> bool:
            return len(status.pids) == self.num_ranks and not set(gone) & set(status.pids.values())

        self.wait_until(all_serve, "all ranks serve", within_s)

    def signal(self, ranks: Sequence[int], number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Waits until these ranks serve and sends a signal to all of them at once. Returns their process ids."""
        status = self.wait_until(lambda status: status.pids.keys() >= {*ranks}, f"ranks {[*ranks]} serve")
        pids = [status.pids[rank] for rank in ranks]
        for pid in pids:
            os.kill(pid, number)
        return pids

    def stop(self) -> None:
        """Ends the server with SIGTERM, as an operator does.

        Raises ServerTrouble if it fails or leaves processes behind.
        """
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
        """The server's process and all processes that it has started."""
        return family(self.process.pid)

    def _rank_processes(self) -> list[psutil.Process]:
        """The ranks' processes. On a Ray cluster they are not children of the server's process."""
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
        raise self._trouble(f"it did not show within {START_S:g} s where it listens")

    def _check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            raise self._trouble(f"it ended with exit code {code}")

    def _trouble(self, what: str) -> ServerTrouble:
        return ServerTrouble(f"the server: {what}. Its log ends:\n{self.log[-2000:]}")


class LauncherKind(StrEnum):
    """What starts the ranks.

    ray: the Ray cluster that RAY_ADDRESS names, or that of this machine (`ray start --head`).
    """

    local = "local"
    ray = "ray"


def serve_command(
    model: Path, num_ranks: int, *settings: str, launcher: LauncherKind = LauncherKind.local
) -> list[str]:
    """The command line of a server. settings: `key=value`, added to those that name the model and the ranks."""
    programs = {LauncherKind.local: ["serve.py", "launcher=local"], LauncherKind.ray: ["ray_job.py", "task=serve"]}
    program, argument = programs[launcher]
    command = [sys.executable, str(LAUNCH / program), argument, "model=checkpoint", f"model.path={model.resolve()}"]
    return [*command, f"parallel.ranks={num_ranks}", "server.port=0", *settings]


@contextmanager
def started(
    model: Path, num_ranks: int, *settings: str, launcher: LauncherKind = LauncherKind.local
) -> Iterator[RankServer]:
    """A server whose ranks all serve. At the end its processes are killed. Raises ServerTrouble."""
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
def serving(
    model: Path, num_ranks: int, *settings: str, launcher: LauncherKind = LauncherKind.local
) -> Iterator[RankServer]:
    """Like `started`, but ends the server as an operator does. Raises ServerTrouble also if it does not end well."""
    with started(model, num_ranks, *settings, launcher=launcher) as server:
        yield server
        server.stop()


def family(pid: int) -> list[psutil.Process]:
    """A process and all processes that it has started; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_processes(processes: list[psutil.Process]) -> None:
    """Kills those of the processes that still run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def shared_memory_files() -> set[str]:
    """The names of the runtime's files in shared memory, on systems where such files need names."""
    return {path.name for path in SHARED_MEMORY.glob(f"{SHARED_MEMORY_PREFIX}*")}


def count_mappings(process: psutil.Process) -> int:
    """How many mappings of the runtime's shared memory a process holds; 0 if it has ended."""
    try:
        return Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").count(SHARED_MEMORY_PREFIX)
    except OSError:
        return 0
