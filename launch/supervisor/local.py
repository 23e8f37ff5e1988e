"""Starts ranks as processes of this machine. What a rank writes to standard error is passed on after its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from launch.supervisor.launcher import OnExit
from launch.supervisor.rank_spec import KEY_VARIABLE, RankSpec

# Seconds that a killed process gets to end.
_LEAVE_S = 5.0


class LocalLauncher:
    """See Launcher."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch.supervisor.rank"],  # -P: import nothing from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, KEY_VARIABLE: key.hex(), "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C at a terminal is for the front end alone
        )
        self._processes[spec.rank] = process
        assert process.stdin and process.stderr
        try:
            with process.stdin as stdin:
                stdin.write(spec.to_json() + "\n")
        except BrokenPipeError:
            pass  # it has ended already, and will be reported
        watcher = threading.Thread(target=_watch, args=(process, spec.rank, on_exit), daemon=True)
        watcher.start()
        threading.Thread(target=_pass_on, args=(process.stderr, spec.rank), daemon=True).start()

    def kill(self, rank: int) -> None:
        if process := self._processes.get(rank):
            process.kill()

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        return rank, num_ranks

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):  # a busy machine may take longer, but it has been killed
                process.wait(_LEAVE_S)


def _watch(process: subprocess.Popen[str], rank: int, on_exit: OnExit) -> None:
    code = process.wait()
    on_exit(rank, f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}")


def _pass_on(stream: IO[str], rank: int) -> None:
    for line in stream:
        prefix = "" if line.startswith(f"rank {rank}: ") else f"rank {rank}: "
        sys.stderr.write(prefix + line)
        sys.stderr.flush()
