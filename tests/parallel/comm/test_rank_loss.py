"""When a rank dies, stops or leaves, every other rank ends soon with a message that names it."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, TCPStore

from parallel.comm.connect import connect
from parallel.comm.process_group import ProcessGroupExchange
from parallel.comm.shared_memory import SharedMemoryExchange
from parallel.errors import RankLost
from parallel.mesh import Mesh, ParallelSettings
from tests.parallel.ranks import free_port, gather, run_ranks_to_end
from tests.slow import slow_except

NUM_ROUNDS_BEFORE = 50
# Seconds that ranks wait for one that is stopped. They must meet within the same time.
STOPPED_S = 3.0


def run_until_one_is_lost(mesh, channel, victim: int, signal_number: int, is_step: bool):
    """Returns, on the survivors, the RankLost that ends the run: (message, ranks, round, seconds until it came).

    is_step: whether ranks gather as in a step.
    """
    exchange = channel._exchange
    for number in range(1_000_000):
        if mesh.rank == victim and number == NUM_ROUNDS_BEFORE:
            os.kill(os.getpid(), signal_number)
        begin = time.monotonic()
        try:
            mine = np.full(10, number, np.int32)
            gather(channel, mine) if is_step else exchange.all_gather(mine)
        except RankLost as error:
            return str(error), error.ranks, number, time.monotonic() - begin
    raise AssertionError("no rank was lost")


def survivors_reports(num_ranks: int, victim: int, signal_number: int, is_step: bool = False, **options):
    outcomes = run_ranks_to_end(
        run_until_one_is_lost, num_ranks, victim, signal_number, is_step, doomed=(victim,), **options
    )
    survivors = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    assert [outcome.error for outcome in survivors] == [None] * (num_ranks - 1), [o.stderr for o in survivors]
    assert [outcome.exit_code for outcome in survivors] == [0] * (num_ranks - 1)
    return [outcome.result for outcome in survivors]


@pytest.mark.parametrize(
    ("num_ranks", "victim", "is_step"), [(2, 1, False), (2, 0, False), (4, 2, False), (2, 1, True), (2, 0, True)]
)
def test_a_killed_rank_is_named_at_once_in_shared_memory(num_ranks: int, victim: int, is_step: bool):
    for message, ranks, number, seconds in survivors_reports(
        num_ranks, victim, signal.SIGKILL, is_step, exchange="shm"
    ):
        assert ranks == (victim,) and f"rank {victim} is lost" in message and "start the run again" in message
        assert number == NUM_ROUNDS_BEFORE
        assert seconds < 1.0  # about 20 ms, more on a machine that is busy elsewhere


@pytest.mark.parametrize(("num_ranks", "victim"), slow_except([(2, 1), (2, 0), (4, 2)], (2, 1)))
def test_a_killed_rank_is_named_over_gloo(num_ranks: int, victim: int):
    for message, ranks, _, seconds in survivors_reports(num_ranks, victim, signal.SIGKILL, exchange="gloo"):
        assert ranks == (victim,) and f"rank {victim} lost" in message and "start the run again" in message
        assert seconds < 6.0  # the roll call takes 2 s


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
@pytest.mark.parametrize(("num_ranks", "victim"), slow_except([(2, 0), (3, 1)], (2, 0)))
def test_a_stopped_rank_is_named_after_the_timeout(num_ranks: int, victim: int, exchange: str):
    reports = survivors_reports(num_ranks, victim, signal.SIGSTOP, exchange=exchange, timeout_s=STOPPED_S)
    for message, ranks, number, seconds in reports:
        assert ranks == (victim,) and f"rank {victim}" in message and "parallel.timeout_s" in message
        assert number == NUM_ROUNDS_BEFORE
        assert STOPPED_S - 0.1 < seconds < STOPPED_S + 5.0
        if exchange == "shm":
            assert "is stopped" in message


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
@pytest.mark.parametrize("signal_number", slow_except([signal.SIGKILL, signal.SIGSTOP], signal.SIGKILL))
def test_the_rank_that_hosts_the_store_is_named_when_it_is_lost(exchange: str, signal_number: int):
    options = {"exchange": exchange, "timeout_s": STOPPED_S, "own_store": True}
    for _, ranks, _, seconds in survivors_reports(3, 0, signal_number, **options):
        assert ranks == (0,)
        assert seconds < STOPPED_S + 5.0


def leave_early(mesh, channel):
    gather(channel, np.zeros(1, np.int32))
    if mesh.rank == 1:
        channel.close()
        time.sleep(1.5)  # alive, but no longer part of the run
        return None
    begin = time.monotonic()
    with pytest.raises(RankLost) as caught:
        gather(channel, np.zeros(1, np.int32))
    return str(caught.value), caught.value.ranks, time.monotonic() - begin


def test_a_rank_that_left_is_named_in_shared_memory():
    message, ranks, seconds = run_ranks_to_end(leave_early, 2, exchange="shm")[0].result
    assert ranks == (1,) and "rank 1 is lost: it has left the run" in message
    assert seconds < 1.0


def wait_for_a_broadcast_of_a_dead_leader(mesh, channel):
    gather(channel, np.zeros(1, np.int32))
    if mesh.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankLost) as caught:
        channel.share(None)
    return caught.value.ranks


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_followers_notice_that_the_leader_died(exchange: str):
    outcomes = run_ranks_to_end(wait_for_a_broadcast_of_a_dead_leader, 3, exchange=exchange, doomed=(0,))
    assert [outcome.result for outcome in outcomes[1:]] == [(0,), (0,)]


def test_a_rank_that_never_comes_to_the_rendezvous_is_named(monkeypatch):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(RankLost, match=r"rank 1 did not come to the rendezvous within 0\.3 s") as caught:
        connect(ParallelSettings(timeout_s=0.3), Mesh(axes={"lp": 2}, rank=0, num_ranks=2))
    assert caught.value.ranks == (1,)


def test_ranks_that_do_not_meet_are_told_where_they_should_meet(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    with pytest.raises(RankLost, match=r"the 2 ranks did not meet at MASTER_ADDR:MASTER_PORT within 0\.3 s"):
        connect(ParallelSettings(timeout_s=0.3), Mesh(axes={"lp": 2}, rank=0, num_ranks=2))


def test_a_rank_lost_while_shared_memory_is_set_up_is_named_and_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.delattr("os.memfd_create")
    monkeypatch.setattr("parallel.comm.shared_memory.MEMORY_FOLDER", str(tmp_path))
    with pytest.raises(RankLost, match=r"rank 1 did not arrive within 0\.3 s \(not yet connected\)") as caught:
        SharedMemoryExchange(HashStore(), 0, 2, 0.3)
    assert caught.value.ranks == (1,)
    with pytest.raises(RankLost, match=r"rank 0 did not set up the shared memory within 0\.3 s") as caught:
        SharedMemoryExchange(HashStore(), 1, 2, 0.3)
    assert caught.value.ranks == (0,)
    assert not list(tmp_path.iterdir())


def test_a_rank_lost_while_gloo_is_set_up_is_named():
    with pytest.raises(RankLost, match="rank 1 lost") as caught:
        ProcessGroupExchange(HashStore(), 0, 2, "gloo", torch.device("cpu"), 0.3)
    assert caught.value.ranks == (1,)
