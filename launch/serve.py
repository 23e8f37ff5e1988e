"""Serves a model over HTTP with OpenAI's interface, on one rank or several.

    python launch/serve.py server.port=8000
    python launch/serve.py launcher=local parallel.ranks=4 model=checkpoint model.path=FOLDER
    torchrun --nproc-per-node 2 launch/serve.py model=checkpoint model.path=FOLDER

With launcher=local the program starts the ranks itself, apart from the HTTP server. It restarts a rank that is lost,
and under lookahead parallelism no request is lost with the rank. Under torchrun, rank 0 answers HTTP too, and a lost
rank ends the program. Either way ranks that hold the whole model form smaller groups once each of those has a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import launch.config.early  # noqa: F401  before the imports that take seconds
from launch.backend import EngineBackend
from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.runtime import RuntimeSettings, follow, running
from launch.server.run import bind, serve
from launch.server.settings import ServerSettings
from launch.supervisor import torchrun
from launch.supervisor.launcher import LocalLauncher
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from parallel.mesh import is_rank, make_mesh, read_rank


class ServeLauncher(StrEnum):
    """What starts the ranks.

    torchrun: torchrun does; a single rank is this process. local: this program starts them on this machine.
    """

    torchrun = "torchrun"
    local = "local"


@dataclass
class ServeSettings(RuntimeSettings):
    """The settings of the program, in addition to those of every program.

    launcher: what starts the ranks. server: see launch.server.settings. supervisor: see launch.supervisor.membership;
    only launcher=local uses it.
    """

    launcher: ServeLauncher = ServeLauncher.torchrun
    server: ServerSettings = field(default_factory=ServerSettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


def run(settings: ServeSettings) -> int:
    """Serves until a signal or an error ends it, and returns the exit code; see `launch.server.run.serve`.

    Raises ValueError for settings that cannot be used.
    """
    if settings.launcher is ServeLauncher.local:
        return _supervise(settings)
    listener = bind(settings.server) if read_rank() == 0 else None  # reports a busy port before it loads a model
    mesh = make_mesh(settings.parallel, settings.model.device)
    if mesh.num_ranks > 1 and mesh.is_replicated:
        if not listener:
            return torchrun.follow(settings, mesh)
        return serve(torchrun.lead(settings, mesh), settings.server, listener)
    with running(settings, mesh) as runtime:
        if not runtime.channel.is_leader:
            runtime.engine.checkpoint.grammars.warm_up()  # rank 0 does it while it opens its server
            return follow(runtime)
        return serve(EngineBackend(runtime.engine, runtime.channel), settings.server, listener)


def _supervise(settings: ServeSettings) -> int:
    if is_rank():
        raise ValueError("launcher=local starts the ranks itself: run it without torchrun, with parallel.ranks=N")
    listener = bind(settings.server)
    return serve(Supervisor(settings, settings.supervisor, LocalLauncher()), settings.server, listener)


def main() -> int:
    engine_settings.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    return process.main("serve", ServeSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
