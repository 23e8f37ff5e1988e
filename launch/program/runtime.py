"""Builds what a program runs on: this rank's model, engine and channel to the other ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import MISSING
from torch.distributed import Store

from launch.program import process
from lp.calibration.calibrate import resolve_step_times
from lp.calibration.measure import StepTimesSource
from lp.engine import Engine
from lp.methods import Auto, DecodeLimits
from lp.model import checkpoint
from lp.model.attention import AttentionSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, Reader
from lp.request_builder import RequestBuilder
from lp.runner import Runner
from lp.sampling.settings import Sampling
from lp.step_cost import StepTimes
from parallel.build import Parallelism
from parallel.comm.channel import Channel
from parallel.comm.connect import connect
from parallel.comm.traffic import Traffic
from parallel.group import loop
from parallel.mesh import Mesh, ParallelSettings, make_mesh
from parallel.shards.weights import num_weight_bytes

log = logging.getLogger("lookahead")


@dataclass
class RuntimeSettings:
    """What every program has. model: its path must be given. decode: one of lp.methods' settings. step_times: what
    decode=auto chooses by.
    """

    model: ModelSettings = field(default_factory=lambda: ModelSettings(path=MISSING))
    decode: Any = MISSING
    sampling: Sampling = field(default_factory=Sampling)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    limits: DecodeLimits = field(default_factory=DecodeLimits)
    step_times: StepTimesSource = StepTimesSource.auto


@dataclass
class Runtime:
    """One rank's share of a program."""

    mesh: Mesh
    parallelism: Parallelism
    channel: Channel
    engine: Engine

    @property
    def traffic(self) -> Traffic:
        """Of this rank's steps: answers, and what the ranks of its replica tell each other. Commands are left out."""
        return self.channel.traffic + self.parallelism.replica.traffic


@contextmanager
def running(settings: RuntimeSettings, mesh: Mesh | None = None, store: Store | None = None) -> Iterator[Runtime]:
    """A runtime whose ranks have met. If rank 0 fails before it serves, it sends the others home; if it fails later,
    they report that it is lost, as they may be in the midst of a step.

    mesh, store: this rank's place and where the ranks meet; None is what the rank environment says. Raises ValueError
    for settings that cannot be used, RankLost if the ranks do not meet.
    """
    mesh = mesh or make_mesh(settings.parallel, settings.model.device)
    process.set_threads(mesh, settings.parallel.threads)
    with closing(Parallelism.join(settings.parallel, mesh, store)) as parallelism:
        loaded, request_builder = load(settings, mesh, parallelism.reader)
        channel = Channel(connect(settings.parallel, mesh, store))
        if mesh.rank != 0:
            process.follow_quietly()  # not before: until the ranks have met, a signal must be able to end this one
        try:
            runner = parallelism.runner(loaded.model, channel, settings.attention.prefill_chunk)
            step_times = step_times_of(settings, loaded.model, runner, channel, mesh)
            engine = Engine(loaded, runner, request_builder, settings.parallel.debug, step_times)
            yield Runtime(mesh, parallelism, channel, engine)
        except (ValueError, OSError):
            if channel.is_leader and not channel.has_shared:  # the others still wait for a first command
                channel.share([{"shutdown": True}])
            raise
        finally:
            channel.close()


def step_times_of(
    settings: RuntimeSettings, model: CausalModel, runner: Runner, channel: Channel, mesh: Mesh
) -> StepTimes | None:
    """None unless requests that do not say how to decode need them. All ranks call this before they serve."""
    decode, parallel = settings.decode, settings.parallel
    if not isinstance(decode, Auto) or decode.rows:
        return None
    mode = [dict(mesh.axes), mesh.num_local_ranks, str(parallel.exchange), parallel.delay_us]
    return resolve_step_times(settings.step_times, model, runner, decode.max_rows, mode, channel.tell)


def follow(runtime: Runtime) -> int:
    """Serves as a rank other than 0, until rank 0 says that it is over."""
    loop.run(runtime.engine, runtime.channel, inbox=None, emit=lambda progress: None)
    return 0


def load(settings: RuntimeSettings, mesh: Mesh, reader: Reader | None) -> tuple[checkpoint.Checkpoint, RequestBuilder]:
    """What a rank holds of the model, and what makes requests for it. Raises ValueError."""
    started = time.monotonic()
    model_settings = replace(settings.model, device=str(mesh.device))
    loaded = checkpoint.load(model_settings, settings.attention.kind, reader)
    request_builder = RequestBuilder(loaded, settings.decode, settings.sampling, settings.limits)
    log.info(
        "loaded %s: %.1f MB of %s weights a rank on %s, context of %d tokens, in %.1f s",
        loaded.name,
        num_weight_bytes(loaded.model.model) / 1e6,
        settings.model.dtype,
        mesh.device,
        loaded.model.max_length,
        time.monotonic() - started,
    )
    if mesh.num_ranks > 1:
        degrees = " x ".join(f"{axis}={degree}" for axis, degree in mesh.axes.items() if degree > 1)
        log.info("%d ranks: %s", mesh.num_ranks, degrees)
    process.freeze_heap()
    return loaded, request_builder
