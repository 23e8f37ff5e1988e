"""What starts and ends the processes of ranks: on this machine (LocalLauncher) or on a cluster (launch/cluster).

Imports nothing but Python's own modules.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, Protocol

# The environment variable with the key that a rank shows to the front end, in hexadecimal digits.
KEY_VARIABLE = "LOOKAHEAD_LINK_KEY"
# Seconds that a killed process gets to end.
_LEAVE_S = 5.0
# Called from any thread when the process of a rank has ended: with the rank, and with how it ended, such as
# 'it was ended by SIGKILL'.
OnExit = Callable[[int, str], None]


@dataclass(frozen=True)
class RankSpec:
    """A rank's place, and where to find its group.

    settings: RuntimeSettings as JSON values. front_end, store: host and port of each.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int
    settings: dict[str, Any]
    front_end: tuple[str, int]
    store: tuple[str, int]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> RankSpec:
        values = json.loads(text)
        places = {name: (values[name][0], values[name][1]) for name in ("front_end", "store")}
        return RankSpec(**{**values, **places})


class Launcher(Protocol):
    """Starts the ranks of one group and ends them.

    host: the address at which the front end listens for its ranks.
    """

    host: str

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        """Starts a rank's process, without waiting for it. `on_exit` is called once, when the process has ended.

        Raises OSError or ValueError if it cannot be started.
        """
        ...

    def kill(self, rank: int) -> None:
        """Ends a rank's process at once, even a stopped one. Does nothing if there is none."""
        ...

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """The local rank of a rank, and the number of ranks on its host."""
        ...

    def close(self) -> None:
        """Ends all processes that are left and frees what was reserved."""
        ...


class LocalLauncher:
    """Starts ranks as processes of this machine. What a rank writes to standard error is passed on after its number."""

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
