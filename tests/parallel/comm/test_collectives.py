"""Collectives along an axis give real ranks right results, equal to the bit on all; they are counted and never hang."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from parallel.comm.base import Collectives, LocalCollectives
from parallel.comm.channel import Channel
from parallel.comm.connect import choose_collectives, connect_axis
from parallel.errors import RankLost
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings
from tests.parallel.ranks import run_ranks, run_ranks_to_end

SHAPES = [(1,), (3, 5), (64, 384), (0, 4), (700, 1000)]
DTYPES = [torch.float32, torch.bfloat16, torch.int32]


def connect_all(
    mesh: Mesh, exchange: str, axis: str = "tp", tp: int | None = None, delay_us: float = 0.0
) -> Collectives:
    """Makes the collectives of all ranks, or of groups of `tp` ranks."""
    tp = tp or mesh.num_ranks
    axes = {"lp": mesh.num_ranks // tp, axis: tp}
    placed = Mesh(axes, mesh.rank, mesh.num_ranks, mesh.local_rank, mesh.num_local_ranks)
    settings = ParallelSettings(exchange=ExchangeKind(exchange), timeout_s=20.0, delay_us=delay_us)
    return connect_axis(settings, placed, axis)


def tensor_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank + 1)
    return (100 * torch.randn(shape, generator=generator)).to(dtype)


def reduce_and_gather(mesh: Mesh, channel: Channel, exchange: str) -> list[bytes]:
    collectives = connect_all(mesh, exchange)
    sums, num_bytes = [], 0
    for shape in SHAPES:
        for dtype in DTYPES:
            parts = [tensor_of(rank, shape, dtype) for rank in range(mesh.num_ranks)]
            mine = parts[mesh.rank]
            assert torch.equal(collectives.all_gather(mine), torch.stack(parts))
            summed = collectives.all_reduce(mine.clone())
            expected = torch.stack(parts).double().sum(0)
            assert summed.dtype == dtype and summed.shape == shape
            torch.testing.assert_close(summed.double(), expected, rtol=0.02, atol=2.0 if dtype.is_floating_point else 0)
            sums.append(summed.view(torch.uint8).numpy().tobytes())
            num_bytes += 2 * mine.nbytes
    assert collectives.traffic.num_collectives == 2 * len(SHAPES) * len(DTYPES)
    assert collectives.traffic.bytes_sent == num_bytes
    assert collectives.traffic.seconds > 0
    collectives.close()
    collectives.close()
    return sums


@pytest.mark.parametrize(("num_ranks", "exchange"), [(2, "shm"), (3, "shm"), (4, "shm"), (2, "gloo"), (3, "gloo")])
def test_sums_are_right_and_equal_to_the_bit_on_all_ranks(num_ranks: int, exchange: str) -> None:
    results = run_ranks(reduce_and_gather, num_ranks, exchange)
    assert all(result == results[0] for result in results)


def send_and_leave(mesh: Mesh, channel: Channel, exchange: str) -> list[int]:
    collectives = connect_all(mesh, exchange, "pp")
    if mesh.rank == 1:
        collectives.send(torch.arange(5), 0)
        collectives.close()
        return []
    time.sleep(0.5)
    return collectives.receive((5,), torch.int64, 1).tolist()


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_a_message_arrives_although_its_sender_leaves(exchange: str) -> None:
    assert run_ranks(send_and_leave, 2, exchange) == [[0, 1, 2, 3, 4], []]


def pass_around(mesh: Mesh, channel: Channel, exchange: str) -> None:
    """Each rank sends many messages to each other rank before it receives any."""
    collectives = connect_all(mesh, exchange, "pp")
    others = [rank for rank in range(mesh.num_ranks) if rank != mesh.rank]
    shapes = [(7,), (1, 3000), (0,), (2, 5)]
    for shape in shapes:
        for other in others:
            message = torch.full(shape, mesh.rank + 0.5)
            collectives.send(message, other)
            message.fill_(-1)  # must not change what was sent
    for shape in shapes:
        for other in others:
            received = collectives.receive(shape, torch.float32, other)
            assert torch.equal(received, torch.full(shape, other + 0.5))
    assert collectives.traffic.num_collectives == len(shapes) * len(others)
    channel.share(b"" if mesh.rank == 0 else None)  # gloo: the first to leave breaks the connections of all
    collectives.close()


@pytest.mark.parametrize(("num_ranks", "exchange"), [(2, "shm"), (3, "shm"), (3, "gloo")])
def test_messages_arrive_in_order(num_ranks: int, exchange: str) -> None:
    run_ranks(pass_around, num_ranks, exchange)


def send_ahead(mesh: Mesh, channel: Channel, exchange: str) -> int:
    """Sends far more than the rings hold to a receiver that is late."""
    collectives = connect_all(mesh, exchange, "pp")
    total = 0
    for number in range(40):
        if mesh.rank == 0:
            collectives.send(torch.full((50_000,), number, dtype=torch.int64), 1)
        else:
            time.sleep(0.05 if number == 0 else 0)
            total += int(collectives.receive((50_000,), torch.int64, 0).sum())
    channel.share(b"" if mesh.rank == 0 else None)
    return total


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_a_sender_that_is_ahead_waits_for_the_receiver(exchange: str) -> None:
    assert run_ranks(send_ahead, 2, exchange)[1] == 50_000 * sum(range(40))


def sum_in_groups(mesh: Mesh, channel: Channel, exchange: str) -> list[float]:
    collectives = connect_all(mesh, exchange, tp=2)
    return [float(collectives.all_reduce(torch.tensor([10.0**mesh.rank]))) for _ in range(20)]


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_groups_do_not_mix(exchange: str) -> None:
    assert run_ranks(sum_in_groups, 4, exchange) == [[11.0] * 20] * 2 + [[1100.0] * 20] * 2


def wait_for_the_dead(mesh: Mesh, channel: Channel, exchange: str) -> str:
    collectives = connect_all(mesh, exchange, tp=2)
    collectives.all_reduce(torch.zeros(1))
    if mesh.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if mesh.rank < 2:
        collectives.all_reduce(torch.zeros(1))
        return "unharmed"
    with pytest.raises(RankLost) as caught:
        for _ in range(100):
            collectives.all_reduce(torch.zeros(10))
    assert caught.value.ranks == (3,)
    return "rank 3" if "rank 3" in str(caught.value) else str(caught.value)


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_a_dead_rank_is_named_by_its_number_in_the_run(exchange: str) -> None:
    outcomes = run_ranks_to_end(wait_for_the_dead, 4, exchange, doomed=(3,))
    assert [outcome.result for outcome in outcomes[:3]] == ["unharmed", "unharmed", "rank 3"], outcomes[2].error


def find_both_gone(mesh: Mesh, channel: Channel, kind: str) -> tuple[int, ...]:
    """Rank 1 dies, rank 0 ends because of that, and rank 2 is busy elsewhere meanwhile: it finds both of them gone."""
    collectives = connect_all(mesh, "shm", kind)
    collectives.all_reduce(torch.zeros(1))
    if mesh.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if mesh.rank == 2:
        time.sleep(1.0)
    with pytest.raises(RankLost) as caught:
        if kind == "tp":
            collectives.all_reduce(torch.zeros(1))
        else:  # as in a pipeline: the first stage waits for the last one's answer
            collectives.receive((1,), torch.int64, 2 if mesh.rank == 0 else 1)
    return caught.value.ranks


@pytest.mark.parametrize("kind", ["tp", "pp"])
def test_a_rank_that_is_late_names_the_dead_and_not_who_left_because_of_it(kind: str) -> None:
    outcomes = run_ranks_to_end(find_both_gone, 3, kind, doomed=(1,))
    assert [outcome.result for outcome in outcomes] == [(1,), None, (1,)], outcomes


def seconds_of_sums(mesh: Mesh, channel: Channel, delay_us: float) -> float:
    collectives = connect_all(mesh, "shm", delay_us=delay_us)
    for _ in range(50):
        collectives.all_reduce(torch.zeros(4))
    assert collectives.traffic.num_collectives == 50
    return collectives.traffic.seconds


def test_a_delay_is_added_and_counted() -> None:
    for seconds in run_ranks(seconds_of_sums, 2, 2000.0):
        assert seconds >= 50 * 2000e-6


def test_an_axis_of_one_rank_sends_nothing() -> None:
    collectives = connect_axis(ParallelSettings(), Mesh({"lp": 1}), "tp")
    assert isinstance(collectives, LocalCollectives)
    assert torch.equal(collectives.all_reduce(torch.ones(3)), torch.ones(3))
    assert torch.equal(collectives.all_gather(torch.ones(3)), torch.ones(1, 3))
    assert collectives.traffic.num_collectives == 0


def test_collectives_are_chosen_by_device_and_hosts() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert choose_collectives(ExchangeKind.auto, ["a", "b"], cpu) is ExchangeKind.gloo
    assert choose_collectives(ExchangeKind.auto, ["a", "a"], gpu) is ExchangeKind.nccl
    assert choose_collectives(ExchangeKind.shm, ["a", "a"], gpu) is ExchangeKind.nccl
    assert choose_collectives(ExchangeKind.gloo, ["a", "a"], gpu) is ExchangeKind.gloo
