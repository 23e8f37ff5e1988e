"""An epoch: a stretch of serving in which the same ranks take part in lookahead parallelism.

A sequence is nothing but its token ids, so an epoch can begin with whoever is left, from the longest list of tokens
that any of them has. Knows nothing of how ranks are started, or of who decides that an epoch is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch.distributed import PrefixStore, Store

from lp.engine import Engine
from lp.request import Progress, Request
from lp.runner import Runner
from lp.step_cost import StepTimes
from parallel.comm.base import IsOver
from parallel.comm.channel import Channel
from parallel.comm.connect import connect
from parallel.mesh import Mesh, ParallelSettings

NOT_THERE = -1


@dataclass
class Epoch:
    """number: from 1. members: ranks that take part, who leads first; those that come new are last. urgent: whether the
    one before is to be given up at once. is_first: nobody has served before. running: requests under way with the
    tokens that the front end has, told to the leader alone: [{"request": ..., "tokens": [...]}].
    """

    number: int
    members: list[int]
    urgent: bool = True
    is_first: bool = False
    running: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def store(self, store: Store) -> Store:
        """Where the members meet: nothing of earlier epochs is there."""
        return PrefixStore(f"epoch/{self.number}", store)

    def mesh(self, before: Mesh, rank: int) -> Mesh:
        """A rank's place among members that hold a whole model each. before: its place among all ranks."""
        num_members = len(self.members)
        return replace(before, axes={"lp": num_members}, rank=self.members.index(rank), num_ranks=num_members)


@contextmanager
def joined(epoch: Epoch, mesh: Mesh, settings: ParallelSettings, store: Store, is_over: IsOver) -> Iterator[Channel]:
    """The channel between the epoch's members. mesh: this one's place among them. Raises RankLost and EpochOver."""
    channel = Channel(connect(settings, mesh, epoch.store(store), is_over))
    try:
        yield channel
    finally:
        channel.close()


def resume(engine: Engine, runner: Runner, channel: Channel, epoch: Epoch, times: StepTimes | None) -> list[Progress]:
    """Brings the engines of all members to the same state, with the longest list of tokens of each request.

    times: of the runner's steps; the leader's count. Returns what each request has so far, from its first token on.
    """
    told = channel.tell({"running": epoch.running, "times": times and times.to_dict()})
    requests = [Request.from_dict(entry["request"]) for entry in told["running"]]
    tokens = longest(channel, engine.generated(), requests, [entry["tokens"] for entry in told["running"]])
    times = StepTimes.from_dict(told["times"]) if told["times"] else None
    return engine.resume(runner, zip(requests, tokens, strict=True), times)


def longest(
    channel: Channel, own: dict[str, list[int]], requests: list[Request], known: list[list[int]]
) -> list[list[int]]:
    """The most tokens that the front end or a member has of each request; equal on all members.

    own: this member's tokens by request id. known: the front end's. Where log-probabilities are wanted, those alone
    count: what they are is known of no others.
    """
    ahead = [_ahead(own.get(request.id, []), tokens, request) for request, tokens in zip(requests, known, strict=True)]
    if not ahead:
        return []
    lengths = channel.compare(np.array([len(more) for more in ahead], dtype=np.int32))
    most = int(lengths.max())
    padded = np.full((len(ahead), most), NOT_THERE, dtype=np.int32)
    for row, more in zip(padded, ahead, strict=True):
        row[: len(more)] = more
    gathered = channel.compare(padded.ravel()).reshape(channel.num_ranks, len(ahead), most) if most else None
    found = []
    for place, tokens in enumerate(known):
        best = int(lengths[:, place].argmax())
        more = gathered[best, place, : lengths[best, place]].tolist() if gathered is not None else []
        found.append([*tokens, *more])
    return found


def _ahead(own: list[int], known: list[int], request: Request) -> list[int]:
    """Tokens that this member has beyond those known; none if it has come to others."""
    if request.sampling.logprobs is not None or own[: len(known)] != known:
        return []
    return own[len(known) :]
