"""An engine whose ranks one process plays, and a clock that reads as if all of them computed at the same time.

Under lookahead parallelism (lp) every rank's part of a step is computed and timed. Under tensor parallelism (tp) the
first rank of each group is played, which holds the largest part of the model: it is timed on the steps of the whole
model, and its collectives are answered at once. A step takes as long as its slowest rank, its collectives and the
exchange, for whose times the caller stands; everything else is done once, as each rank would do it. All of it is
processor time of one thread, which other programs do not lengthen much. Ranks do not disturb one another, though those
of one machine do: they share its memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.streams.curves import shared_times, with_exchange
from benchmarks.projections.virtual_ranks import PlayedStep, VirtualRanks
from lp import Auto, Engine
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import resolve_step_times
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes
from lp.tree import chain
from parallel.sharding.tensor import read_sharded


@dataclass(frozen=True)
class CommunicationTimes:
    """Seconds of an exchange of all ranks, which each step has, and of a collective of tensor parallelism."""

    exchange_s: float
    collective_s: float


class VirtualClock:
    """Seconds as ranks with a thread each would count them. Called, it gives the time now."""

    def __init__(self, times: CommunicationTimes, group: LoneRank, num_ranks: int):
        """group: that of the model that is timed."""
        self._times, self._group = times, group
        self._exchange_s = times.exchange_s if num_ranks > 1 else 0.0
        self._num_collectives = 0
        self._hidden_s = 0.0

    def __call__(self) -> float:
        return time.thread_time() - self._hidden_s

    def note(self, step: PlayedStep) -> None:
        """Counts a step as long as its slowest rank takes, with its communication."""
        before, self._num_collectives = self._num_collectives, self._group.traffic.num_collectives
        num_collectives = (self._num_collectives - before) / max(1, step.num_computing)
        communication_s = self._exchange_s + num_collectives * self._times.collective_s
        self._hidden_s += sum(step.seconds) + step.untimed_s - step.slowest_s - communication_s


def virtual_engine(
    settings: ModelSettings, lp: int, tp: int, communication: CommunicationTimes
) -> tuple[Engine, VirtualClock]:
    """An engine on lp x tp played ranks, and its clock. Raises ValueError if the model cannot be split so."""
    checkpoint, group = load(settings), LoneRank(tp)
    shard = load(settings, reader=read_sharded(group), group=group).model if tp > 1 else None
    clock = VirtualClock(communication, group, lp * tp)
    runner = VirtualRanks(checkpoint.model, lp, clock.note, time.thread_time, shard)
    times = _step_times(shard or checkpoint.model, group, lp, communication)
    return Engine(checkpoint, runner, step_times=times), clock


def _step_times(timed: CausalModel, group: LoneRank, lp: int, communication: CommunicationTimes) -> StepTimes:
    """What the ranks would measure: from the curve of the one that is timed."""
    measured = resolve_step_times(
        StepTimesSource.measure, timed, SingleDevice(timed), Auto().most_rows(), ["played", group.num_ranks],
        measure_host=Auto().measure_host,
    )  # fmt: skip
    assert measured is not None
    before = group.traffic.num_collectives
    timed.forward(chain([0]), timed.make_cache(1), num_logits=1)
    collectives_s = (group.traffic.num_collectives - before) * communication.collective_s
    if lp > 1:
        return shared_times(with_exchange(measured, collectives_s), lp, communication.exchange_s)
    return with_exchange(measured, collectives_s + communication.exchange_s * (group.num_ranks > 1))
