"""The ways of using ranks for many streams, and the speed of each at a number of streams.

The real engine decodes known texts on played replicas (virtual_replicas.py). The processor time of the engine is
measured and added to each step, since every rank does the same work; the rest of a step is computed from curves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.projections.network import Network
from benchmarks.projections.streams.curves import Machine, shared_times
from benchmarks.projections.streams.known_answers import KnownAnswers, KnownText
from benchmarks.projections.streams.virtual_replicas import VirtualReplicas
from lp import Engine, Sampling, Stopping
from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.model.checkpoint import Checkpoint
from lp.request import DecodingMethod
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import SchedulerSettings
from lp.step_cost import StepTimes
from parallel.groups.elastic import ElasticGroups, sizes
from parallel.mesh import Mode

# The systems' names that others need: one rank with the whole model, all ranks in one group, static data parallelism by
# separate servers, and groups whose size follows from the number of streams.
ONE_RANK, LP, SERVERS, ELASTIC = "one rank", "LP", "DP, servers", "auto"
# Streams that continue the same text begin so many tokens apart, all in its first half.
STAGGER = 3
# No bound for the rows of a step: prompts are computed in the first one, which does not count.
ANY_ROWS = 1 << 24


@dataclass(frozen=True)
class System:
    """A way of using ranks. Its name ends with "plain" if it has no drafts.

    replicas: that share a step. curve: of one of them. times: by which the engine decides.
    """

    name: str
    decode: DecodingMethod
    replicas: int
    curve: StepTimes
    times: StepTimes
    network: Network


@dataclass(frozen=True)
class Speed:
    """Steps of a system in which all streams decode, added up.

    rows: of all replicas. largest: of the replica with the most rows. host_s: processor seconds of the engine.
    """

    system: str
    streams: int
    tokens: int
    steps: int
    rows: int
    largest: int
    model_s: float
    host_s: float

    @property
    def tokens_per_s(self) -> float:
        """Returns the tokens per second of all streams together."""
        return self.tokens / (self.model_s + self.host_s)

    @property
    def tokens_per_step(self) -> float:
        """Returns the tokens that one stream gets in a step."""
        return self.tokens / self.steps / self.streams


def systems_on(machine: Machine, ranks: int) -> list[System]:
    """One rank, and the ways in which several share all steps."""
    one, tensor, network = machine.one, machine.tensor, machine.network

    def group(size: int) -> System:
        shared = shared_times(one, size, network.latency_us * 1e-6)
        return System(group_name(size, ranks), Auto(), size, one, shared, network)

    return [
        System(f"{ONE_RANK}, plain", Autoregressive(), 1, one, one, network),
        *map(group, sizes(ranks)),
        System("TP, plain", Autoregressive(), 1, tensor, tensor, network),
        System("TP", Auto(), 1, tensor, tensor, network),
    ]


def speed_of(checkpoint: Checkpoint, answers: KnownAnswers, systems: Sequence[System]) -> Callable[[str, int], Speed]:
    """A function that gives the speed of a system, by its name, at a number of streams. It runs each once."""
    by_name = {system.name: system for system in systems}
    return cache(lambda name, streams: run(checkpoint, answers, by_name[name], streams))


def group_name(size: int, ranks: int) -> str:
    """The name of ranks that share all steps."""
    return {1: ONE_RANK, ranks: LP}.get(size, f"LP, {size} ranks")


def elastic_size(ranks: int, streams: int) -> int:
    """The size of groups that `parallel=auto` has with so many streams."""
    return ElasticGroups(Mode.auto).group_size(streams, ranks, now=0.0)


def groups_tokens_per_s(one_group: Callable[[int], Speed], groups: int, streams: int) -> float:
    """Returns the speed of groups of ranks, each with its share of the streams: they share no host's work and no
    exchange, and none waits for another. one_group: the speed of a group at a number of streams.
    """
    fewest, more = divmod(streams, groups)
    shares = [fewest + (group < more) for group in range(groups)]
    return sum(one_group(share).tokens_per_s for share in shares if share)


def groups_of(texts: Sequence[KnownText], streams: int) -> list[list[tuple[KnownText, int]]]:
    """Groups of streams that run at the same time: each stream's text, and how many of its new tokens it is given.

    The first group is one more, for the engine to learn what drafts are worth; together the others have every text.
    """
    groups = []
    for first in range(0, (1 + max(1, len(texts) // streams)) * streams, streams):
        group = []
        for place in range(streams):
            text, copy = texts[(first + place) % len(texts)], place // len(texts)
            group.append((text, STAGGER * copy % max(1, (len(text.tokens) - text.start) // 2)))
        groups.append(group)
    return groups


def run(checkpoint: Checkpoint, answers: KnownAnswers, system: System, streams: int) -> Speed:
    """Decodes the texts with so many streams at a time. A group ends with the first stream that ends."""
    runner = VirtualReplicas(answers, system.replicas)
    engine = Engine(
        checkpoint,
        runner,
        step_times=system.times,
        budget=KVBudget(),
        scheduler=SchedulerSettings(max_step_rows=ANY_ROWS),
    )
    speed = Speed(system.name, streams, 0, 0, 0, 0, 0.0, 0.0)
    for number, group in enumerate(groups_of(answers.texts, streams)):
        found = _run_group(engine, runner, system, group, speed)
        speed = found if number else speed
    return speed


def _run_group(
    engine: Engine, runner: VirtualReplicas, system: System, group: Sequence[tuple[KnownText, int]], speed: Speed
) -> Speed:
    """Adds the steps of a group to a speed: all but the first, which computes the prompts, and the last."""
    names = [f"{place}" for place in range(len(group))]
    for name, (text, given) in zip(names, group, strict=True):
        runner.texts[name] = text
        num_new = len(text.tokens) - text.start - given
        prompt, stopping = text.tokens[: text.start + given], Stopping(num_new, ignore_eos=True)
        engine.add_request(engine.request_builder.build(prompt, system.decode, Sampling.greedy(), stopping, name))
    is_first = True
    while True:
        begin, answering_s = time.thread_time(), runner.answering_s
        outputs = engine.step()
        host_s = time.thread_time() - begin - (runner.answering_s - answering_s)
        if any(output.finish_reason for output in outputs):
            break
        if not is_first:
            step = runner.step
            speed = replace(
                speed,
                tokens=speed.tokens + sum(len(output.tokens) for output in outputs),
                steps=speed.steps + 1,
                rows=speed.rows + sum(load.rows for load in step.loads),
                largest=speed.largest + max(load.rows for load in step.loads),
                model_s=speed.model_s + step.seconds(system.curve, system.network),
                host_s=speed.host_s + host_s,
            )
        is_first = False
    for name in names:
        engine.abort(name)
    return speed
