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
from parallel.comm.base import IsOver, Traffic, never
from parallel.comm.guarded_group import GuardedGroup
from parallel.comm.process_group import ProcessGroupCollectives
from parallel.errors import EpochOver, RankLost

pytestmark = pytest.mark.usefixtures("cuda")
GPU = torch.device("cuda", 0)
# Of a wait for a lost rank, and for what must come without such a wait, however busy the machine is.
LIMIT_S, LATE_S = 0.3, 60.0


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
        """Ends what is under way, as NCCL's kernels look whether they are to; the results mean nothing."""
        self.is_up = "abort" not in self.blocking
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
    monkeypatch.setattr(guarded_group, "make_group", lambda *_: network)
    monkeypatch.setattr(guarded_group, "find_missing_ranks", lambda *_: [1])
    monkeypatch.setattr(guarded_group, "LAST_RESORT_S", 0.0)
    monkeypatch.setattr(guarded_group, "_LEAVING_S", 0.1)
    return network


def connect(is_over: IsOver = never, timeout_s: float = LIMIT_S) -> GuardedGroup:
    return GuardedGroup(HashStore(), [0, 1], 0, "nccl", GPU, timeout_s, is_over)


def seconds_until(error: type[Exception], act: Callable[[], Any]) -> float:
    begin = time.monotonic()
    with pytest.raises(error):
        act()
    return time.monotonic() - begin


MANY = 200  # collectives of a model of 100 layers


def test_the_host_launches_everything_and_waits_once(network: Network) -> None:
    group, tensor = connect(timeout_s=LATE_S), torch.zeros(2, device=GPU)
    network.is_up = False
    for _ in range(MANY):
        group.all_reduce(tensor)  # would raise RankLost if it waited, as nothing ends
    threading.Timer(0.1, setattr, (network, "is_up", True)).start()
    group.synchronize()
    assert network.is_up
    group.close()


def test_a_rank_that_is_lost_is_named_after_the_time_limit(network: Network) -> None:
    group, tensor = connect(), torch.zeros(2, device=GPU)
    network.is_up = False
    begin = time.monotonic()
    with pytest.raises(RankLost):
        for _ in range(MANY):
            group.all_reduce(tensor)
        group.synchronize()
    assert time.monotonic() - begin > LIMIT_S
    assert "abort" in network.calls
    with pytest.raises(RankLost, match="rank 1 lost"):  # and again, whoever asks later
        group.all_reduce(tensor)


def test_a_host_that_stands_still_in_a_call_is_freed(network: Network) -> None:
    """As in a copy that awaits a result: nobody asks the group anything, so its own thread must notice."""
    collectives = ProcessGroupCollectives(HashStore(), [0, 1], 0, "nccl", GPU, LIMIT_S)
    tensor = torch.zeros(2, device=GPU)

    def step() -> None:
        with collectives.deferred():
            network.is_up = False
            collectives.all_reduce(tensor)
            collectives.synchronize()  # the model's own, at the end of its forward: put off
            while not network.is_up:
                time.sleep(0.01)

    assert seconds_until(RankLost, step) > LIMIT_S
    assert network.calls.count("abort") == 1


def test_a_replayed_graph_is_watched_and_counted(network: Network) -> None:
    collectives = ProcessGroupCollectives(HashStore(), [0, 1], 0, "nccl", GPU, LIMIT_S)
    before = collectives.traffic.num_collectives

    def step() -> None:
        with collectives.deferred():
            network.is_up = False
            collectives.replayed(Traffic(65, 1000))
            while not network.is_up:
                time.sleep(0.01)

    assert seconds_until(RankLost, step) > LIMIT_S
    assert collectives.traffic.num_collectives == before + 65


def test_an_error_of_a_step_with_a_lost_rank_is_the_lost_rank(network: Network) -> None:
    """What the others' part of a sum should have been is not a number, so whatever reads it may fail first."""
    collectives = ProcessGroupCollectives(HashStore(), [0, 1], 0, "nccl", GPU, LIMIT_S)

    def step(error: Exception) -> None:
        with collectives.deferred():
            collectives.all_reduce(torch.zeros(2, device=GPU))
            raise error

    with pytest.raises(ValueError, match="of the step"):
        step(ValueError("of the step"))
    network.is_up = False
    with pytest.raises(RankLost, match="rank 1 lost"):
        step(ValueError("logits that are not numbers"))


def test_a_graphs_collectives_are_not_awaited_while_it_is_captured(network: Network) -> None:
    group, tensor = connect(), torch.zeros(2, device=GPU)
    network.is_up = False
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        group.all_reduce(tensor)
        group.synchronize()
    network.is_up = True
    time.sleep(LIMIT_S + 0.1)
    group.synchronize()  # nothing was late, as nothing was launched
    group.close()


def test_a_group_that_cannot_be_left_does_not_hold_the_rank_up(network: Network) -> None:
    """NCCL's abort does not return while there are graphs that use the communicator."""
    group = connect()
    network.is_up, network.blocking = False, {"abort"}
    assert seconds_until(RankLost, group.synchronize) < LATE_S


def test_what_is_under_way_when_the_epoch_ends_is_stopped(network: Network) -> None:
    """A kernel of NCCL's would wait for a rank that is lost, and the memory that it writes to for the kernel."""
    is_over = threading.Event()
    group = connect(is_over.is_set, timeout_s=2 * LATE_S)
    network.is_up = False
    group.all_reduce(torch.zeros(2, device=GPU))
    is_over.set()
    assert seconds_until(EpochOver, group.synchronize) < LATE_S
    end = time.monotonic() + LATE_S
    while "abort" not in network.calls and time.monotonic() < end:
        time.sleep(0.01)
    assert "abort" in network.calls


def test_connecting_hears_the_end_of_the_epoch_and_has_a_limit(network: Network) -> None:
    """NCCL builds its communicators in the first collective, on the thread that calls it."""
    network.blocking = {"allreduce"}
    end = time.monotonic() + 0.1
    assert seconds_until(EpochOver, lambda: connect(lambda: time.monotonic() > end, timeout_s=2 * LATE_S)) < LATE_S
    assert LIMIT_S < seconds_until(RankLost, connect) < LATE_S
