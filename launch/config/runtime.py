"""A program's runtime on this rank: its engine, and its place among the ranks of the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import MISSING
from torch.distributed import Store

from launch.config import process
from launch.config.process import take_cores
from lp.engine.builder import EngineSettings
from lp.engine.engine import Engine
from lp.model.checkpoint import Checkpoint, ModelSettings
from lp.platform.hardware import dtype_name
from parallel.build import MeshTopology, OnLoaded
from parallel.comm.base import Traffic
from parallel.comm.channel import Channel
from parallel.groups.messages import Shutdown, encode_commands
from parallel.groups.worker import run_engine
from parallel.mesh import Mesh, Mode, ParallelSettings, explain, make_mesh

log = logging.getLogger("lookahead")


@dataclass
class RuntimeSettings(EngineSettings):
    """The settings that every program has: those of its engine, and how its ranks work together.

    model.path and decode must be given. parallel: see parallel.mesh.
    """

    model: ModelSettings = field(default_factory=lambda: ModelSettings(path=MISSING))
    decode: Any = MISSING
    parallel: ParallelSettings = field(default_factory=ParallelSettings)

    def on(self, mesh: Mesh) -> RuntimeSettings:
        """Returns these settings with the device that the mesh gives to this rank."""
        return replace(self, model=replace(self.model, device=str(mesh.device)))


@dataclass
class Runtime:
    """The engine of one rank, and its place in the mesh."""

    place: MeshTopology
    engine: Engine

    @property
    def mesh(self) -> Mesh:
        return self.place.mesh

    @property
    def channel(self) -> Channel:
        return self.place.channel

    @property
    def traffic(self) -> Traffic:
        """The traffic of this rank's steps so far; see MeshTopology."""
        return self.place.traffic


@contextmanager
def running(settings: RuntimeSettings, mesh: Mesh | None = None, store: Store | None = None) -> Iterator[Runtime]:
    """Yields a runtime whose ranks have met.

    If rank 0 fails before it has sent the first command, it tells the other ranks to shut down. If it fails later, they
    report that it is lost, because they may be in the middle of a step.

    mesh, store: this rank's place, and where the ranks meet; None takes them from the environment of the rank. Raises
    ValueError for settings that cannot be used, RankLost if the ranks do not meet.
    """
    mesh = mesh or make_mesh(settings.parallel, settings.model.device)
    take_cores(mesh, settings.parallel)

    def on_met() -> None:
        if mesh.rank != 0:  # until the ranks have met, a signal must be able to end this one
            process.follow_quietly()

    with closing(MeshTopology(settings.parallel, mesh, store, report_loaded(settings, mesh), on_met)) as place:
        try:
            yield Runtime(place, Engine.assemble(settings.on(mesh), place))
        except (ValueError, OSError):
            if place.has_met and place.channel.is_leader and not place.channel.has_shared:
                place.channel.share(encode_commands([Shutdown()]))  # the others still wait for a first command
            raise


def report_loaded(settings: RuntimeSettings, mesh: Mesh) -> OnLoaded:
    """Returns what a program does once the weights are loaded: it logs this and freezes the heap; see `freeze_heap`."""
    started = time.monotonic()

    def report(loaded: Checkpoint) -> None:
        model, dtype = loaded.model, dtype_name(loaded.model.dtype)
        log.info(
            "loaded %s: %.1f MB of %s a rank on %s, context of %d tokens, in %.1f s",
            loaded.name,
            model.weight_bytes / 1e6,
            f"quantised weights (arithmetic in {dtype})" if model.has_quantized_weights else f"{dtype} weights",
            mesh.device,
            model.max_length,
            time.monotonic() - started,
        )
        if mesh.num_ranks > 1:
            log.info("%d ranks: %s", mesh.num_ranks, explain(mesh.axes, settings.parallel.mode))
        elif Mode(settings.parallel.mode) is Mode.dp:
            log.warning("parallel=dp with one rank has nobody to share requests with: it runs as parallel=single")
        process.freeze_heap()

    return report


def follow(runtime: Runtime) -> int:
    """Serves as a rank other than 0 until rank 0 tells it to shut down. Returns exit code 0."""
    run_engine(runtime.engine, runtime.channel, inbox=None, emit=lambda output: None)
    return 0
