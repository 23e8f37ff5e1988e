"""The mesh and the choice of the exchange: what contradicts itself is refused with the numbers and the mend."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from parallel.comm.base import LocalExchange
from parallel.comm.connect import choose_exchange, connect, identify_host
from parallel.mesh import ExchangeKind, Mesh, Mode, ParallelSettings, choose_device, make_mesh

TWO_RANKS = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_without_rank_environment_there_is_one_rank():
    mesh = make_mesh(ParallelSettings(), "cpu", {})
    assert (mesh.rank, mesh.num_ranks, mesh.local_rank, mesh.num_local_ranks) == (0, 1, 0, 1)
    assert mesh.axes == {"lp": 1} and mesh.device == torch.device("cpu")


def test_rank_environment_is_read():
    mesh = make_mesh(ParallelSettings(), "cpu", TWO_RANKS)
    assert (mesh.rank, mesh.num_ranks, mesh.local_rank, mesh.num_local_ranks) == (1, 2, 1, 2)
    assert mesh.degree("lp") == 2 and mesh.degree("tp") == 1


def test_mesh_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mesh(axes={"lp": 1}).rank = 1  # pyright: ignore


@pytest.mark.parametrize("degree", [1, 2, None])
def test_fitting_degrees(degree: int | None):
    num_ranks = degree or 2
    environment = TWO_RANKS | {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    environment |= {"RANK": "0", "LOCAL_RANK": "0"}
    assert make_mesh(ParallelSettings(mode=Mode.lp, lp=degree), "cpu", environment).degree("lp") == num_ranks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ParallelSettings(lp=3), r"parallel\.lp=3 needs 3 rank\(s\), but there are 2: .* --nproc-per-node 3"),
        (ParallelSettings(lp=1), r"parallel\.lp=1 needs 1 rank\(s\), but there are 2"),
        (ParallelSettings(lp=0), r"parallel\.lp=0 must be at least 1"),
        (ParallelSettings(lp=-2), r"parallel\.lp=-2 must be at least 1"),
        (ParallelSettings(mode=Mode.single), r"parallel\.mode=single uses one rank, but 2 were started .*mode=lp"),
        (ParallelSettings(timeout_s=0), r"parallel\.timeout_s=0 must be a positive"),
        (ParallelSettings(threads=0), r"parallel\.threads=0 must be at least 1"),
        (ParallelSettings(ranks=0), r"parallel\.ranks=0 must be at least 1"),
    ],
)
def test_bad_settings_for_two_ranks(settings: ParallelSettings, message: str):
    with pytest.raises(ValueError, match=message):
        make_mesh(settings, "cpu", TWO_RANKS)


def test_two_axes_must_multiply_to_the_number_of_ranks():
    assert Mesh(axes={"lp": 2, "tp": 2}, num_ranks=4).degree("tp") == 2
    with pytest.raises(ValueError, match=r"parallel\.lp=2 \* parallel\.tp=3 needs 6 rank\(s\), but there are 4"):
        Mesh(axes={"lp": 2, "tp": 3}, num_ranks=4)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_variable_is_named(name: str):
    environment = {key: value for key, value in TWO_RANKS.items() if key != name}
    with pytest.raises(ValueError, match=f"incomplete: {name} not set.*torchrun"):
        make_mesh(ParallelSettings(), "cpu", environment)


def test_missing_world_size_is_named():
    environment = {key: value for key, value in TWO_RANKS.items() if key != "WORLD_SIZE"}
    with pytest.raises(ValueError, match="incomplete: WORLD_SIZE not set"):
        make_mesh(ParallelSettings(), "cpu", environment)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the rank environment is not an integer"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x' in the rank environment is not an integer"),
        ({"RANK": "2"}, "contradicts itself: RANK=2 of WORLD_SIZE=2"),
        ({"RANK": "-1"}, "contradicts itself: RANK=-1"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 of LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
    ],
)
def test_contradictory_environment(changes: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        make_mesh(ParallelSettings(), "cpu", TWO_RANKS | changes)


@pytest.mark.parametrize(
    ("name", "local_rank", "num_local_ranks", "num_gpus", "device"),
    [
        ("cpu", 1, 2, 8, "cpu"),
        ("cuda", 1, 2, 2, "cuda:1"),
        ("auto", 3, 4, 8, "cuda:3"),
        ("auto", 1, 2, 0, "cpu"),
        ("auto", 1, 2, 1, "cpu"),
        ("cuda:0", 0, 1, 1, "cuda:0"),
        ("cuda:3", 0, 1, 4, "cuda:3"),
    ],
)
def test_device(name: str, local_rank: int, num_local_ranks: int, num_gpus: int, device: str):
    assert choose_device(name, local_rank, num_local_ranks, num_gpus) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "num_gpus", "message"),
    [
        ("cuda", 1, r"2 ranks run on this host, which has 1 GPU\(s\): start 1 rank\(s\)"),
        ("cuda", 0, r"model\.device=cuda, but torch finds no GPU here: use model\.device=cpu"),
        ("tpu", 0, r"model\.device='tpu' is not known: use auto, cpu, cuda or cuda:N"),
        ("cuda:-1", 8, r"model\.device='cuda:-1' is not known"),
        ("cuda:", 8, r"model\.device='cuda:' is not known"),
    ],
)
def test_device_refused(name: str, num_gpus: int, message: str):
    with pytest.raises(ValueError, match=message):
        choose_device(name, 1, 2, num_gpus)


@pytest.mark.parametrize(("num_gpus", "message"), [(0, "torch finds no GPU here"), (2, r"this host has 2 GPU\(s\)")])
def test_a_numbered_gpu_that_is_not_there_is_refused(num_gpus: int, message: str):
    with pytest.raises(ValueError, match=rf"model\.device=cuda:2, but {message}"):
        choose_device("cuda:2", 0, 1, num_gpus)


def test_ranks_that_share_a_gpu_are_told_what_that_is_for(caplog):
    assert [choose_device("cuda:1", rank, 2, 2) for rank in range(2)] == [torch.device("cuda", 1)] * 2
    assert "2 ranks share cuda:1, each with weights of its own" in caplog.text


def test_a_gpu_that_torch_cannot_use_is_explained(caplog):
    reason = "the NVIDIA driver is too old"
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=rf"^model\.device={name}, but {reason}; or use model\.device=cpu$"):
            choose_device(name, 0, 1, 1, reason)
    assert choose_device("auto", 0, 1, 1, reason) == torch.device("cpu")
    assert "computing on the CPU: the NVIDIA driver is too old" in caplog.text


def test_auto_device_says_that_gpus_are_left_unused(caplog):
    choose_device("auto", 0, 2, 1)
    assert "2 ranks on this host but 1 GPU(s): computing on the CPU" in caplog.text


def test_choice_of_the_exchange():
    assert choose_exchange(ExchangeKind.auto, ["a", "a"]) is ExchangeKind.shm
    assert choose_exchange(ExchangeKind.auto, ["a", "b"]) is ExchangeKind.gloo
    assert choose_exchange(ExchangeKind.gloo, ["a", "a"]) is ExchangeKind.gloo
    with pytest.raises(
        ValueError, match=r"exchange=shm needs all ranks on one host, but these 3 run on 2 .*gloo or auto"
    ):
        choose_exchange(ExchangeKind.shm, ["a", "b", "a"])


def test_one_rank_needs_no_rendezvous():
    assert isinstance(connect(ParallelSettings(), Mesh(axes={"lp": 1})), LocalExchange)


def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match=r"exchange=nccl needs ranks on GPUs .* this rank computes on cpu"):
        connect(ParallelSettings(exchange=ExchangeKind.nccl), Mesh(axes={"lp": 1}))


def test_processes_of_one_host_identify_it_alike():
    command = "from parallel.comm.connect import identify_host; print(identify_host())"
    assert subprocess.check_output([sys.executable, "-c", command], text=True).strip() == identify_host()
