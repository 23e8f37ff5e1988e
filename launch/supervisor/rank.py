"""One rank of a group that has a front end: `python -m launch.supervisor.rank`, with a RankSpec on standard input.

Started by launchers, not by users (Ray's actors call `serve_rank`). Exit codes: 0 when the group is shut down, 2 for
what a user can fix, 3 if the group goes on without this rank, else 1.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from launch.config import process, runtime
from launch.config.ending import leave
from launch.config.engine_settings import from_json_values
from launch.config.process import take_cores
from launch.config.runtime import RuntimeSettings
from launch.supervisor.launcher import KEY_VARIABLE, RankSpec
from lp.engine.builder import agree_on_costs, find_step_times, step_times_file, time_draft_model
from lp.engine.engine import Engine
from lp.model.checkpoint_info import require_trees
from lp.model.second_model import DRAFT
from lp.platform.hardware import why_no_gpu
from lp.request import Output
from lp.runner.runner import Runner
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import StepTimesFile
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes
from parallel.build import EpochTopology, describe_mode, share_steps
from parallel.comm.channel import Channel
from parallel.errors import EpochOver, RankLost, StateDiverged
from parallel.groups.elastic import sizes_of
from parallel.groups.epoch import Epoch, joined, resume
from parallel.groups.link import Link
from parallel.groups.messages import Failed, Measured, Ready
from parallel.groups.worker import Fenced, FrontEndGone, Worker
from parallel.mesh import Mesh, Mode, choose_device, is_one_gpu
from parallel.runners.copying import CacheTransfer

FENCED = 3


def main() -> int:
    spec = RankSpec.from_json(sys.stdin.readline())
    process.set_logging(spec.rank)
    return serve_rank(spec, bytes.fromhex(os.environ.pop(KEY_VARIABLE)))


def serve_rank(spec: RankSpec, key: bytes) -> int:
    """Serves as a rank until it is sent away. Returns the exit code. key: shows the front end that this is its rank."""
    process.keep_memory()
    process.follow_quietly()
    try:
        link = Link.connect(spec.front_end, key)
    except ConnectionError as error:
        process.log.error("error: %s", error)
        return 1
    try:
        run_worker(link, spec.rank, partial(Rank.of, spec))
        return 0
    except Fenced as error:
        process.log.info("leaving: %s", error)
        return FENCED
    except (FrontEndGone, RankLost, StateDiverged, OSError, ValueError, torch.cuda.OutOfMemoryError) as error:
        failure = _failure_of(error)
        if not failure.is_final:  # else the front end says it, once for all ranks
            process.log.error("error: %s", failure.reason)
        return 2 if failure.is_final else 1


def run_worker(link: Link, rank: int, make: Callable[[Worker], Rank]) -> None:
    """Serves as a rank over a link until it is shut down.

    Raises Fenced, FrontEndGone, and what ends the rank otherwise, once it has told the front end.
    """
    with closing(link):
        worker = Worker(link, rank)
        try:
            make(worker).serve()
        except Fenced:
            raise
        except Exception as error:
            worker.send(_failure_of(error))
            raise


def _failure_of(error: Exception) -> Failed:
    """What the front end is told. It is final if the next try would end in the same way."""
    match error:
        case torch.cuda.OutOfMemoryError():
            return Failed(process.out_of_memory(error), is_final=True)
        case FrontEndGone() | RankLost() | StateDiverged() | OSError() | ValueError():
            return Failed(str(error), is_final=isinstance(error, ValueError))
        case _:
            return Failed(f"{type(error).__name__}: {error}", is_final=False)


class Rank:
    """The model and the group of one rank.

    times: what steps take, by the number of ranks that share them; empty if it is not known.
    """

    def __init__(self, settings: RuntimeSettings, mesh: Mesh, store: Store, worker: Worker) -> None:
        """mesh: the rank's place among all ranks. store: where the ranks of an epoch meet."""
        self.settings, self.mesh, self.store, self.worker = settings, mesh, store, worker
        self.times: dict[int, StepTimes] = {}
        self._files: dict[int, StepTimesFile] = {}
        take_cores(mesh, settings.parallel)

    @staticmethod
    def of(spec: RankSpec, worker: Worker) -> Rank:
        settings = from_json_values(spec.settings, RuntimeSettings)
        timeout = timedelta(seconds=settings.parallel.timeout_s)
        store = TCPStore(*spec.store, is_master=False, wait_for_workers=False, timeout=timeout)
        return Rank(settings, _mesh(spec, settings), store, worker)

    def serve(self) -> None:
        if self.mesh.is_replicated:
            self._serve_whole()
        else:
            self._serve_part()

    def _serve_whole(self) -> None:
        """The whole model is here: ranks may come and go."""
        settings = self.settings.on(self.mesh)
        on_loaded = runtime.report_loaded(settings, self.mesh)
        place = EpochTopology(settings.parallel, on_loaded, self.mesh.num_sharing)
        # Step times depend on how many ranks share a step, and so are found in the first epoch.
        engine = Engine.assemble(replace(settings, step_times=StepTimesSource.off), place)
        require_trees(engine.checkpoint)
        alone, model = cast(SingleDevice, engine.runner), engine.checkpoint.model
        engine.checkpoint.grammars.warm_up()
        self.worker.transfer = CacheTransfer(alone)
        self.worker.send(Ready(str(self.mesh.device), model.memory.num_pages))

        def join(epoch: Epoch) -> AbstractContextManager[Channel]:
            if threading.current_thread() is threading.main_thread():
                process.follow_quietly()  # until the ranks have met, a signal must be able to end this one
            return joined(epoch, self.mesh.rank, self.mesh, settings.parallel, self.store, self.worker.is_over)

        def resume_in(epoch: Epoch, channel: Channel) -> list[Output]:
            runner = self._share_steps(engine, alone, channel)
            if epoch.is_first:
                self.times = self._find_times(engine, epoch, channel, alone, settings.step_times)
                if self.times:
                    time_draft_model(engine.checkpoint, alone, channel.broadcast)
            else:  # a new rank has none, and what one has learnt may not have reached the others
                values = channel.broadcast([[size, times.to_dict()] for size, times in self.times.items()])
                self.times = {size: StepTimes.from_dict(times) for size, times in values}
            agree_on_costs(engine.checkpoint, channel.least)
            learns = channel.is_leader and settings.step_times.learns
            engine.keep_times = partial(self._keep, engine, epoch, channel) if learns else None
            self._report(channel)
            return resume(engine, runner, channel, epoch, self._times_for(channel.num_ranks, runner.num_parts))

        self.worker.serve(engine, join, resume_in)

    def _find_times(
        self, engine: Engine, epoch: Epoch, channel: Channel, alone: SingleDevice, source: StepTimesSource
    ) -> dict[int, StepTimes]:
        """The step times of groups of all sizes that this epoch's members may form, which all of them find together.

        Ranks that share a processor slow each other down, so all groups of a size time their steps side by side.
        """
        settings, found = self.settings.parallel, dict[int, StepTimes]()

        def find(runner: Runner, size: int) -> StepTimes | None:
            described = self._describe(epoch, size)
            return find_step_times(engine.request_builder, source, alone.model, runner, described, channel.broadcast)

        for size in sizes_of(Mode(settings.mode), channel.num_ranks):
            if size == channel.num_ranks:
                times = find(self._share_steps(engine, alone, channel), size)
            elif size == 1:
                times = find(alone, size)
            else:
                groups = replace(epoch, group_size=size)
                store = PrefixStore(f"measured after {channel.num_steps}", self.store)
                with joined(groups, self.mesh.rank, self.mesh, settings, store, self.worker.is_over) as part:
                    times = find(self._share_steps(engine, alone, part), size)
            if times is None:
                return {}
            found[size] = times
        return found

    def _share_steps(self, engine: Engine, alone: SingleDevice, channel: Channel) -> Runner:
        return share_steps(alone, channel, self.settings.parallel.mode, has_draft=has_draft(engine))

    def _describe(self, epoch: Epoch, size: int) -> list[Any]:
        """Names groups of a size among this epoch's members; see `describe_mode`."""
        whole = replace(epoch, group_size=0).mesh(self.mesh, self.mesh.rank)
        mode = describe_mode(self.settings.parallel, whole)
        if size == len(epoch.members):
            return mode
        return [*mode, "apart"] if size == 1 else [*mode, "in groups of", size]

    def _keep(self, engine: Engine, epoch: Epoch, channel: Channel, times: StepTimes) -> None:
        """Keeps step times that this group has learnt, and tells the front end."""
        size = channel.num_ranks
        self._tell(times, channel)
        if size not in self._files:
            described = self._describe(epoch, size)
            self._files[size] = step_times_file(engine.request_builder, engine.checkpoint.model, described)
        self._files[size].keep(times)

    def _times_for(self, size: int, num_parts: int) -> StepTimes | None:
        """The step times of groups of a size, or of the next larger or else smaller one that was measured.

        num_parts: of their runner.
        """
        if not self.times:
            return None
        nearest = min(self.times, key=lambda measured: (measured < size, abs(measured - size)))
        return self.times[nearest].for_parts(num_parts)

    def _tell(self, times: StepTimes, channel: Channel) -> None:
        """Notes what steps of this group take, and sends it to the front end."""
        self.times[channel.num_ranks] = times
        self._report(channel)

    def _report(self, channel: Channel) -> None:
        """Sends the front end what steps take."""
        if self.times and channel.is_leader:
            self.worker.send(Measured({str(size): times.to_dict() for size, times in self.times.items()}))

    def _serve_part(self) -> None:
        """Without all its ranks, such a group can do nothing: it serves in one epoch and ends with it."""
        self.worker.send(Ready(str(self.mesh.device)))
        epoch = self.worker.next_epoch()
        with runtime.running(self.settings, self.mesh, epoch.store(self.store, self.mesh.rank)) as running:
            engine, channel = running.engine, running.channel
            engine.checkpoint.grammars.warm_up()
            if engine.history.step_times:
                self._tell(engine.history.step_times, channel)
            if engine.keep_times is not None:
                keep = engine.keep_times

                def keep_and_tell(times: StepTimes) -> None:
                    keep(times)
                    self._tell(times, channel)

                engine.keep_times = keep_and_tell
            waiting = resume(engine, engine.runner, channel, epoch, engine.history.step_times)
            try:
                self.worker.serve_in(epoch, engine, channel, waiting)
            except EpochOver:
                self.worker.next_epoch()  # raises why this rank has to leave
                raise


def has_draft(engine: Engine) -> bool:
    return DRAFT in engine.checkpoint.extensions


def _mesh(spec: RankSpec, settings: RuntimeSettings) -> Mesh:
    num_gpus = torch.cuda.device_count()
    device = choose_device(settings.model.device, spec.local_rank, spec.num_local_ranks, num_gpus, why_no_gpu())
    degrees = settings.parallel.resolve_degrees(spec.num_ranks)
    places = spec.rank, spec.num_ranks, spec.local_rank, spec.num_local_ranks
    return Mesh(degrees, *places, device, is_one_gpu(settings.model.device))


if __name__ == "__main__":
    leave(main())
