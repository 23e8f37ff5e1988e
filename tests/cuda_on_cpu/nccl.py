"""NCCL and symmetric memory for emulated GPUs: gloo carries what a rank's process sends.

Collectives are operations of the emulated GPU, so a graph captures them, runs them when it is replayed, and does
nothing while it captures. Installed in each rank's own process.
"""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from parallel.comm import connect, guarded_group, symmetric_memory
from parallel.comm.guarded_group import make_group
from tests.cuda_on_cpu import gpu
from tests.cuda_on_cpu.operators import IMPLEMENTATIONS, LAUNCHES

_LIBRARY = torch.library.Library("fake_nccl", "DEF")
_LIBRARY.define("all_reduce_(Tensor(a!) values, str name) -> Tensor(a!)")
_LIBRARY.define("all_gather_(Tensor(a!) gathered, Tensor own) -> Tensor(a!)")
_LIBRARY.define("receive_(Tensor(a!) values, int source) -> Tensor(a!)")
_operators = torch.ops.fake_nccl


class Network:
    """This process's connections. done: collectives that were done, by name. asked: those that Python asked for."""

    def __init__(self) -> None:
        self.group: Any = None
        self.done: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.sent: list[Any] = []  # gloo gives up a message that nobody holds

    def all_reduce(self, values: Tensor, name: str) -> Tensor:
        if not is_capturing():
            self.done[name] += 1
            wide = values.float().contiguous()
            self.group.allreduce([wide]).wait()
            values.copy_(wide)
        return values

    def all_gather(self, gathered: Tensor, own: Tensor) -> Tensor:
        if not is_capturing():
            self.done["all_gather"] += 1
            parts = [torch.empty_like(own).contiguous() for _ in gathered]
            self.group.allgather([parts], [own.contiguous()]).wait()
            gathered.copy_(torch.stack(parts))
        return gathered

    def receive(self, values: Tensor, source: int) -> Tensor:
        self.done["receive"] += 1
        self.group.recv([values], source, 0).wait()
        return values


def is_capturing() -> bool:
    return any(getattr(one, "is_capturing", False) for one in gpu.observers)


class Launched:
    """Work that the stream waits for, and not the host."""

    def __init__(self, sent: Any = None):
        self.sent = sent

    def wait(self) -> None: ...

    def is_completed(self) -> bool:
        return self.sent is None or self.sent.is_completed()


class FakeNccl:
    """The face of ProcessGroupNCCL that is used here. A collective on the current stream returns None."""

    def __init__(self, network: Network):
        self.network = network

    def allreduce(self, tensors: list[Tensor], options: Any) -> Launched | None:
        self.network.asked["all_reduce"] += 1
        _operators.all_reduce_(tensors[0], "all_reduce")
        return Launched() if options.asyncOp else None

    def _allgather_base(self, output: Tensor, given: Tensor, options: Any) -> None:
        assert not options.asyncOp, "on the current stream, so that a graph captures it"
        self.network.asked["all_gather"] += 1
        _operators.all_gather_(output, given)

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Launched:
        self.network.asked["send"] += 1
        given: Any = tensors[0]
        self.network.sent.append(self.network.group.send([given.on_cpu], to, tag))
        return Launched(self.network.sent[-1])

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Launched:
        self.network.asked["receive"] += 1
        _operators.receive_(tensors[0], source)
        return Launched()

    def abort(self) -> None: ...


def uuid_of(device: Any) -> str:
    return f"GPU-{torch.device(device).index}"


class FakeMemory:
    """torch's _SymmetricMemory. has_peers: whether the GPUs can read each other's memory."""

    has_peers = True

    @staticmethod
    def set_group_info(*_: Any) -> None: ...

    @staticmethod
    def empty_strided_p2p(size: Any, stride: Any, dtype: Any, device: Any, group: str) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    @staticmethod
    def rendezvous(buffer: Tensor, group: str) -> None:
        if not FakeMemory.has_peers:
            raise RuntimeError("the GPUs cannot read each other's memory")


def _one_shot(values: Tensor, operation: str, group: str) -> Tensor:
    return _operators.all_reduce_(values.clone(), "one_shot")


def _two_shot(values: Tensor, operation: str, group: str) -> Tensor:
    return _operators.all_reduce_(values, "two_shot")


def install(monkeypatch: pytest.MonkeyPatch, has_peers: bool = False) -> Network:
    """Puts this in the place of NCCL and of symmetric memory. has_peers: whether the latter can be used."""
    network = Network()

    def make(store: Any, rank: int, num_ranks: int, backend: str, timeout_s: float) -> Any:
        network.group = make_group(store, rank, num_ranks, "gloo", timeout_s)
        return FakeNccl(network)

    implementations = {
        "all_reduce_": network.all_reduce,
        "all_gather_": network.all_gather,
        "receive_": network.receive,
    }
    for name, implementation in implementations.items():
        operator = getattr(_operators, name).default
        monkeypatch.setitem(IMPLEMENTATIONS, operator, implementation)
        monkeypatch.setitem(LAUNCHES, operator, 1)
    monkeypatch.setattr(guarded_group, "make_group", make)
    monkeypatch.setattr(connect, "is_nccl_available", lambda: True)
    monkeypatch.setattr(FakeMemory, "has_peers", has_peers)
    monkeypatch.setattr(symmetric_memory, "_symmetric_memory", lambda: FakeMemory)
    fake = types.SimpleNamespace(one_shot_all_reduce=_one_shot, two_shot_all_reduce_=_two_shot)
    monkeypatch.setattr(symmetric_memory, "_operators", lambda: fake)
    known = vars(torch.cuda.get_device_properties(0))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: types.SimpleNamespace(**known | {"uuid": uuid_of(device)}),
    )
    return network
