"""Collectives along an axis over torch.distributed: gloo for tensors on the CPU, NCCL for tensors on GPUs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import Store

from parallel.comm.guarded_group import GuardedGroup
from parallel.comm.traffic import Traffic


class ProcessGroupCollectives:
    """See `Collectives`, and GuardedGroup for the arguments."""

    def __init__(
        self, store: Store, ranks: list[int], rank: int, backend: str, device: torch.device, timeout_s: float
    ) -> None:
        self._group = GuardedGroup(store, ranks, rank, backend, device, timeout_s)
        self.rank = self._group.rank
        self.num_ranks = len(ranks)
        self.traffic = Traffic()
        self._device = device

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            summed = self._here(tensor)
            self._group.all_reduce(summed)
            return summed.to(self._device)

    def all_gather(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            return self._group.all_gather(self._here(tensor)).to(self._device)

    def send(self, tensor: Tensor, to: int) -> None:
        with self.traffic.counted(tensor.nbytes):
            self._group.send(self._here(tensor), to)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        with self.traffic.counted(0, num_collectives=0):
            received = torch.empty(shape, dtype=dtype, device=self._group.device)
            self._group.receive(received, source)
            return received.to(self._device)

    def close(self) -> None:
        self._group.close()

    def _here(self, tensor: Tensor) -> Tensor:
        """On the group's device, rows one after another."""
        return tensor.to(self._group.device).contiguous()
