"""A server as a process: its log, whether it lives, and its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.faults.rank_server import family, kill_processes
from benchmarks.real.child import environment

# Seconds that a server may take to end before it is killed.
STOP_S = 15.0


@dataclass
class StartedProcess:
    """url: where it serves, once that is known."""

    popen: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def find_trouble(self) -> str | None:
        """Why it no longer serves; None if it runs."""
        code = self.popen.poll()
        return None if code is None else f"its process ended with exit code {code}: {last_line(self.log)}"


@contextmanager
def started_process(command: list[str], threads: int) -> Iterator[StartedProcess]:
    """A process that ends with the block, with all that it has started. Ctrl-C in a terminal does not reach it."""
    variables = environment(
        OMP_NUM_THREADS=str(threads), PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1"
    )
    with TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=variables,
                start_new_session=os.name == "posix",
            )
        try:
            yield StartedProcess(popen, log)
        finally:
            _stop(popen)


def _stop(popen: subprocess.Popen[bytes]) -> None:
    """Ends a process as an operator does, and kills what is left."""
    processes = family(popen.pid)
    popen.terminate()
    try:
        popen.wait(STOP_S)
        psutil.wait_procs(processes, timeout=2.0)
    except subprocess.TimeoutExpired:
        pass
    finally:
        kill_processes(processes)
        popen.wait()


def last_line(log: Path) -> str:
    """The last line of a log that says something, shortened."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "its log is empty")[:300]
