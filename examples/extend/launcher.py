"""A launcher of one's own: it starts each rank behind a command, such as `nice`, `numactl` or `docker exec`.

    python -m examples.extend.launcher model=smollm2 parallel.ranks=2

The settings are those of launch/serve.py. The supervisor does the rest: it watches the ranks, forms epochs, and starts
a lost rank again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from launch.config import engine_settings, process
from launch.serve import ServeSettings
from launch.server.run import bind, serve
from launch.server.settings import ServerSettings
from launch.supervisor.launcher import KEY_VARIABLE, OnExit, RankSpec
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor


class CommandLauncher:
    """See Launcher. prefix: the words that go before the command of a rank."""

    host = "127.0.0.1"

    def __init__(self, prefix: list[str]):
        self.prefix = prefix
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        command = [*self.prefix, sys.executable, "-P", "-m", "launch.supervisor.rank"]
        environment = {**os.environ, KEY_VARIABLE: key.hex()}
        rank = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        self._processes[spec.rank] = rank
        assert rank.stdin
        with rank.stdin as stdin:  # a rank reads one line: its place, and where to find its group
            stdin.write(spec.to_json().encode() + b"\n")
        threading.Thread(target=lambda: on_exit(spec.rank, f"it ended with {rank.wait()}"), daemon=True).start()

    def kill(self, rank: int) -> None:
        if found := self._processes.get(rank):
            found.kill()

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        return rank, num_ranks  # all ranks are on this host

    def close(self) -> None:
        for rank in self._processes.values():
            rank.kill()
            rank.wait()


def run(settings: ServeSettings) -> int:
    listener = bind(settings.server)
    supervisor = Supervisor(settings, settings.supervisor, CommandLauncher(["nice", "-n", "1"]))
    return serve(supervisor, settings.server, listener)


def main() -> int:
    engine_settings.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    return process.main("serve", ServeSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
