"""One rank of a sweep's point on a node that Ray has chosen: an actor that runs `launch.sweep.rank` as a process.

The process reads and writes files in a folder on that node; the actor receives and returns their texts.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from torch.distributed import TCPStore

from launch.sweep.handover import Handover
from launch.sweep.hardware import describe_hardware
from launch.sweep.ranks import usable_cores


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
