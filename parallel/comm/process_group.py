"""The exchange and the collectives over torch.distributed: gloo, or NCCL for ranks on GPUs.

Only tensors travel, no pickled objects. Knows nothing of what they mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Store

from parallel.comm.base import IsOver, never
from parallel.comm.guarded_group import GuardedGroup
from parallel.comm.traffic import Traffic


class ProcessGroupExchange:
    """The `Exchange` of ranks that need not be on one host; see GuardedGroup for the arguments."""

    def __init__(
        self,
        store: Store,
        rank: int,
        num_ranks: int,
        backend: str,
        device: torch.device,
        timeout_s: float,
        is_over: IsOver = never,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.traffic = Traffic()
        self._group = GuardedGroup(store, list(range(num_ranks)), rank, backend, device, timeout_s, is_over)

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [I]"
        with self.traffic.counted(mine.nbytes):
            gathered = self._group.all_gather(torch.from_numpy(mine).to(self._group.device), timeout_s)
            self._group.settle(timeout_s)
            return gathered.cpu().numpy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "only rank 0 passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            length = torch.tensor([len(data or b"")], device=self._group.device)
            self._group.broadcast(length)
            self._group.settle()
            if not int(length):
                return b""
            buffer = bytearray(data) if data is not None else bytearray(int(length))
            content = torch.frombuffer(buffer, dtype=torch.uint8).to(self._group.device)
            self._group.broadcast(content)
            self._group.settle()
            return content.cpu().numpy().tobytes()

    def close(self) -> None:
        self._group.close()


class ProcessGroupCollectives:
    """The `Collectives` of ranks that need not be on one host; see GuardedGroup for the arguments."""

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
            summed = self._to_group(tensor)
            self._group.all_reduce(summed)
            return summed.to(self._device)

    def all_gather(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            return self._group.all_gather(self._to_group(tensor)).to(self._device)

    def send(self, tensor: Tensor, to: int) -> None:
        with self.traffic.counted(tensor.nbytes):
            self._group.send(self._to_group(tensor), to)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        with self.traffic.counted(0, num_collectives=0):
            received = torch.empty(shape, dtype=dtype, device=self._group.device)
            self._group.receive(received, source)
            self._group.settle()
            return received.to(self._device)

    def settle(self) -> None:
        self._group.settle()

    def close(self) -> None:
        self._group.close()

    def _to_group(self, tensor: Tensor) -> Tensor:
        """Returns the tensor on the group's device, contiguous."""
        return tensor.to(self._group.device).contiguous()
