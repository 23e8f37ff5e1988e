"""Serves a model over HTTP with OpenAI's interface, on one rank or several.

    python launch/serve.py server.port=8000
    python launch/serve.py launcher=local parallel.ranks=4 model=checkpoint model.path=FOLDER
    torchrun --nproc-per-node 2 launch/serve.py model=checkpoint model.path=FOLDER

launcher=local starts the ranks itself, apart from the HTTP front end: one that is lost is started again, and under
lookahead parallelism no request is lost with it. Under torchrun, rank 0 answers HTTP, and a lost rank ends the program.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import StrEnum

from launch.backend import EngineBackend
from launch.program import configuration, process
from launch.program.runtime import RuntimeSettings, follow, running
from launch.server.run import bind, serve
from launch.server.settings import ServerSettings
from launch.supervisor.local import LocalLauncher
from launch.supervisor.settings import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from parallel.mesh import is_rank, read_rank


class ServeLauncher(StrEnum):
    """torchrun: it, or nobody for a single rank. local: this program, on this machine."""

    torchrun = "torchrun"
    local = "local"


@dataclass
class ServeSettings(RuntimeSettings):
    """server, supervisor: see launch.server.settings, launch.supervisor.settings. launcher: what starts the ranks."""

    launcher: ServeLauncher = ServeLauncher.torchrun
    server: ServerSettings = field(default_factory=ServerSettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


def run(settings: ServeSettings) -> int:
    """Exit code 0 after SIGTERM or SIGINT, once running requests have ended."""
    if settings.launcher is ServeLauncher.local:
        return _supervise(settings)
    listener = bind(settings.server) if read_rank() == 0 else None  # a busy port is said before a model is loaded
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        return serve(EngineBackend(runtime.engine, runtime.channel), settings.server, listener)


def _supervise(settings: ServeSettings) -> int:
    if is_rank():
        raise ValueError("launcher=local starts the ranks itself: run it without torchrun, with parallel.ranks=N")
    listener = bind(settings.server)
    return serve(Supervisor(settings, settings.supervisor, LocalLauncher()), settings.server, listener)


def main() -> int:
    configuration.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    return process.main("serve", ServeSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
