"""Serves a model over HTTP with OpenAI's interface, on one rank or several.

    python launch/serve.py server.port=8000
    torchrun --nproc-per-node 2 launch/serve.py model=checkpoint model.path=FOLDER

Rank 0 answers HTTP; the others compute their part of each step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from launch import configuration, process
from launch.runtime import RuntimeSettings, follow, running
from launch.server.run import bind, serve
from launch.server.settings import ServerSettings
from parallel.mesh import read_rank


@dataclass
class ServeSettings(RuntimeSettings):
    """server: see launch.server.settings."""

    server: ServerSettings = field(default_factory=ServerSettings)


def run(settings: ServeSettings) -> int:
    """Exit code 0 after SIGTERM or SIGINT, once running requests have ended."""
    listener = bind(settings.server) if read_rank() == 0 else None  # a busy port is said before a model is loaded
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        return serve(runtime.engine, runtime.channel, settings.server, listener)


def main() -> int:
    configuration.register("serve", ServeSettings, server=ServerSettings)
    return process.main("serve", ServeSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
