"""Collectives on a GPU: the host launches them without waiting, and no rank that is lost makes it wait for ever.

In place of NCCL there is a group whose collectives end when the test says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from parallel.comm import guarded_group
from parallel.comm.base import IsOver, never
from parallel.comm.guarded_group import MOST_AHEAD, GuardedGroup
from parallel.errors import EpochOver, RankLost

pytestmark = pytest.mark.usefixtures("cuda")
GPU = torch.device("cuda", 0)
LIMIT_S = 0.3


class Network:
    """What the ranks of a group share. is_up: whether collectives end. blocking: calls that never return."""

    def __init__(self) -> None:
        self.is_up = True
        self.blocking: set[str] = set()
        self.calls: list[str] = []
        self.never = threading.Event()

    def call(self, name: str) -> Network:
        self.calls.append(name)
        if name in self.blocking:
            self.never.wait()
        return self

    # A group of torch's, and the work that its collectives return.

    def allreduce(self, tensors: Any, options: Any) -> Network:
        return self.call("allreduce")

    def abort(self) -> None:
        self.call("abort")

    def wait(self) -> None: ...

    def is_completed(self) -> bool:
        return True


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()

    class Event:
        def record(self, stream: Any) -> None: ...

        def query(self) -> bool:
            return network.is_up

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(guarded_group, "_make_group", lambda *_: network)
    monkeypatch.setattr(guarded_group, "find_missing_ranks", lambda *_: [1])
    monkeypatch.setattr(guarded_group, "_NCCL_LAST_RESORT_S", 0.0)
    monkeypatch.setattr(guarded_group, "_LEAVING_S", 0.1)
    return network


def connect(is_over: IsOver = never) -> GuardedGroup:
    return GuardedGroup(HashStore(), [0, 1], 0, "nccl", GPU, LIMIT_S, is_over)


def seconds_until(error: type[Exception], act: Callable[[], Any]) -> float:
    begin = time.monotonic()
    with pytest.raises(error):
        act()
    return time.monotonic() - begin


def test_the_host_launches_ahead_and_waits_once(network: Network) -> None:
    group, tensor = connect(), torch.zeros(2, device=GPU)
    network.is_up = False
    begin = time.monotonic()
    for _ in range(MOST_AHEAD):
        group.all_reduce(tensor)
    assert time.monotonic() - begin < LIMIT_S
    threading.Timer(0.1, setattr, (network, "is_up", True)).start()
    group.settle()
    assert 0.05 < time.monotonic() - begin < 2 and len(group._ahead) == 0


@pytest.mark.parametrize("where", ["next collective", "settle"])
def test_a_rank_that_is_lost_is_named_after_the_time_limit(where: str, network: Network) -> None:
    group, tensor = connect(), torch.zeros(2, device=GPU)
    network.is_up = False
    for _ in range(MOST_AHEAD):
        group.all_reduce(tensor)
    act = group.settle if where == "settle" else lambda: group.all_reduce(tensor)
    assert LIMIT_S < seconds_until(RankLost, act) < LIMIT_S + 1
    assert "abort" in network.calls


def test_a_group_that_cannot_be_left_does_not_hold_the_rank_up(network: Network) -> None:
    group = connect()
    network.is_up, network.blocking = False, {"abort"}
    assert seconds_until(RankLost, group.settle) < LIMIT_S + 1


def test_connecting_hears_the_end_of_the_epoch_and_has_a_limit(network: Network) -> None:
    """NCCL builds its communicators in the first collective, on the thread that calls it."""
    network.blocking = {"allreduce"}
    end = time.monotonic() + 0.1
    assert seconds_until(EpochOver, lambda: connect(lambda: time.monotonic() > end)) < 1
    assert LIMIT_S < seconds_until(RankLost, connect) < LIMIT_S + 1
