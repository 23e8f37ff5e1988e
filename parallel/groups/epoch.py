"""An epoch: a period of serving in which the same ranks take part, in groups of the same size.

The ranks of a group share every step, as in lookahead parallelism. Each group serves requests of its own, with engines
that know nothing of the other groups, and none waits for another.

A sequence is nothing but its token ids. So whichever ranks are left can begin a new epoch, from the longest list of
tokens that any of them has. Knows nothing of how ranks are started, or of who decides that an epoch is over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from torch.distributed import PrefixStore, Store

from lp.drafting.history import merge
from lp.engine.builder import digests_of, require_same_files, require_same_heads
from lp.engine.engine import Engine
from lp.methods.registry import from_dict
from lp.platform.library import require_on_all
from lp.request import Output, Request
from lp.runner.runner import Runner
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.prefix_cache import FinishedSequence
from lp.step_cost import StepTimes
from parallel.comm.base import IsOver
from parallel.comm.channel import Channel
from parallel.comm.connect import connect
from parallel.mesh import Mesh, ParallelSettings

log = logging.getLogger("lookahead")

# Tokens of a finished sequence that no rank may hold; they are computed again when a request begins with them.
MOST_LACKING = 64


@dataclass(frozen=True)
class RunningRequest:
    """A request that an epoch begins with. tokens: those that the front end has."""

    request: Request
    tokens: list[int]

    def to_dict(self) -> dict[str, Any]:
        return {"request": self.request.to_dict(), "tokens": self.tokens}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RunningRequest:
        request = values["request"]
        return RunningRequest(Request.from_dict(request, from_dict(request["decode"])), values["tokens"])


@dataclass
class Epoch:
    """One epoch, as the front end announces it to the ranks.

    number: counted from 1. members: the ranks that take part, group after group; new ones are last. urgent: whether
    the epoch before is given up at once, in the middle of a step. group_size: how many ranks share their steps; 0 is
    all. is_first: whether no member has served before. running: requests that go on; each leader gets those of its
    group.
    """

    number: int
    members: list[int]
    urgent: bool = True
    group_size: int = 0
    is_first: bool = False
    running: list[RunningRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group_size = self.group_size or len(self.members)
        assert len(self.members) % self.group_size == 0, "all groups have the same size"

    @property
    def is_divided(self) -> bool:
        """Whether there are several groups."""
        return self.group_size < len(self.members)

    @property
    def leaders(self) -> list[int]:
        """The first rank of each group, which gets its commands and sends its outputs."""
        return self.members[:: self.group_size]

    def group_of(self, rank: int) -> list[int]:
        """The members that share steps with a rank, itself included; the first of them leads."""
        begin = self.members.index(rank) // self.group_size * self.group_size
        return self.members[begin : begin + self.group_size]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**vars(self), "running": [entry.to_dict() for entry in self.running]}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Epoch:
        return Epoch(**{**values, "running": [RunningRequest.from_dict(entry) for entry in values["running"]]})

    def store(self, store: Store, rank: int) -> Store:
        """Where the group of a rank meets. It holds nothing from earlier epochs."""
        return PrefixStore(f"epoch/{self.number}/{self.group_size}/{self.group_of(rank)[0]}", store)

    def mesh(self, before: Mesh, rank: int) -> Mesh:
        """A rank's place in its group. before: its place among all ranks."""
        group = self.group_of(rank)
        return replace(before, axes={"lp": len(group)}, rank=group.index(rank), num_ranks=len(group))


@contextmanager
def joined(
    epoch: Epoch, rank: int, mesh: Mesh, settings: ParallelSettings, store: Store, is_over: IsOver
) -> Iterator[Channel]:
    """The channel between the ranks of a rank's group. mesh: the rank's place among all ranks.

    Raises RankLost and EpochOver.
    """
    channel = Channel(connect(settings, epoch.mesh(mesh, rank), epoch.store(store, rank), is_over))
    try:
        yield channel
    finally:
        channel.close()


def resume(engine: Engine, runner: Runner, channel: Channel, epoch: Epoch, times: StepTimes | None) -> list[Output]:
    """Brings the engines that share steps to the same state, with the longest list of tokens of each request.

    Of drafts, all go on with what they have learnt together. What requests of one owner share is forgotten if several
    ranks share steps, as each of them may know something else.

    times: step times of the runner, the same on these ranks. Returns all that each request has so far, from its first
    token on. Raises ValueError if this rank has another index of answers, corpus or heads than the leader.
    """
    own = [entry.to_dict() for entry in epoch.running]
    files = engine.history.index, engine.history.corpus
    room = KVBudget(channel.least(engine.checkpoint.model.memory.num_pages))
    if channel.num_ranks > 1:
        log.info("%s", room.describe())
    shared = channel.broadcast({"running": own, "files": digests_of(*files), "heads": engine.checkpoint.heads_digest})
    require_same_files(*files, shared["files"])
    require_same_heads(engine.checkpoint, shared["heads"])
    require_on_all(channel.least)
    running = [RunningRequest.from_dict(entry) for entry in shared["running"]]
    requests, known = [entry.request for entry in running], [entry.tokens for entry in running]
    tokens = longest(channel, engine.generated(), requests, known)
    names = {request.id for request in requests}  # one whose end the front end has not heard of runs again
    finished = [one for one in still_held(channel, engine.scheduler.prefixes.finished(), runner) if one.id not in names]
    learnt = merge(channel.collect(engine.history.learnt()))
    is_alone = channel.num_ranks == 1
    outputs = engine.resume(
        runner, zip(requests, tokens, strict=True), times, room, finished, learnt, keep_shared=is_alone
    )
    cached = channel.collect([number for _, number in _count_cached(engine)])
    for one, several in zip(engine.scheduler, zip(*cached, strict=True), strict=True):
        one.reuse_cached(max(several))
    running = [(one.sequence.id, [*one.prompt, *one.generated]) for one in engine.scheduler]
    runner.compare_caches([*running, *((one.id, one.tokens) for one in finished)])
    return outputs


def num_cached(engine: Engine) -> dict[str, int]:
    """By request id, how many tokens of each running request have keys and values on this rank."""
    found: dict[str, int] = {}
    for name, number in _count_cached(engine):  # a request may have several sequences
        found[name] = found.get(name, 0) + number
    return found


def _count_cached(engine: Engine) -> Iterator[tuple[str, int]]:
    """For each running sequence, its request's id, and how many of its tokens have keys and values on this rank."""
    for one in engine.scheduler:
        yield one.request_id, engine.runner.num_cached(one.sequence.id, one.sequence.tokens)


def still_held(channel: Channel, own: list[FinishedSequence], runner: Runner) -> list[FinishedSequence]:
    """The finished sequences that one of the ranks sharing steps holds almost whole; equal on all of them.

    own: those of this rank. Those that were used last on any rank are last.
    """
    held = [runner.num_cached(one.id, one.tokens) for one in own]
    shared = channel.collect([[*one, number] for one, number in zip(own, held, strict=True)])
    found: dict[str, FinishedSequence] = {}
    for several in zip_longest(*(reversed(of_rank) for of_rank in shared)):
        for *fields, number in filter(None, several):
            one = FinishedSequence(*fields)
            if len(one.tokens) - 1 - number <= MOST_LACKING:
                found.setdefault(one.id, one)
    return list(reversed(found.values()))


def longest(
    channel: Channel, own: dict[str, list[int]], requests: list[Request], known: list[list[int]]
) -> list[list[int]]:
    """The longest list of tokens that the front end or a member has of each request; equal on all members.

    own: this member's tokens by request id. known: the front end's. Where log-probabilities are wanted, only the front
    end's tokens count, because the log-probabilities of other tokens are lost.
    """
    ahead = [_ahead(own.get(request.id, []), tokens, request) for request, tokens in zip(requests, known, strict=True)]
    if not ahead:
        return []
    of_members = zip(*channel.collect(ahead), strict=True)
    return [[*tokens, *max(several, key=len)] for tokens, several in zip(known, of_members, strict=True)]


def _ahead(own: list[int], known: list[int], request: Request) -> list[int]:
    """The tokens that this member has beyond the known ones; none if its list does not begin with the known ones."""
    sampling = request.sampling
    wants_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None
    if wants_logprobs or own[: len(known)] != known:
        return []
    return own[len(known) :]
