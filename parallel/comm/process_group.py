"""The exchange and the collectives over torch.distributed: gloo, or NCCL for ranks on GPUs.

Only tensors travel, no pickled objects. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Store

from parallel.comm.base import IsOver, Messages, Traffic, WithoutSlots, never
from parallel.comm.guarded_group import GuardedGroup
from parallel.comm.rows import GathersRows
from parallel.comm.symmetric_memory import SymmetricSum, try_symmetric_memory
from parallel.errors import RankLost


class ProcessGroupExchange(GathersRows):
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
        self.messages: Messages | None = None
        self.backend = backend
        self._group = GuardedGroup(store, list(range(num_ranks)), rank, backend, device, timeout_s, is_over)

    def make_messages(self, device: torch.device) -> Messages:
        """Messages over the connections of this exchange. device: this rank's."""
        return GroupMessages(self._group, device)

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [I]"
        with self.traffic.counted(mine.nbytes):
            gathered = self._group.all_gather(torch.from_numpy(mine).to(self._group.device))
            self._group.synchronize()
            return gathered.cpu().numpy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "only rank 0 passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            length = torch.tensor([len(data or b"")], device=self._group.device)
            self._group.broadcast(length)
            self._group.synchronize()
            if not int(length):
                return b""
            buffer = bytearray(data) if data is not None else bytearray(int(length))
            content = torch.frombuffer(buffer, dtype=torch.uint8).to(self._group.device)
            self._group.broadcast(content)
            self._group.synchronize()
            return content.cpu().numpy().tobytes()

    def close(self) -> None:
        if self.messages is not None:
            self.messages.close()
        self._group.close()


class GroupMessages:
    """The `Messages` over a group, which is the caller's to close. device: where this rank's tensors lie."""

    def __init__(self, group: GuardedGroup, device: torch.device) -> None:
        self.traffic = Traffic()
        self._group = group
        self._device = device

    def send(self, tensor: Tensor, to: int) -> None:
        with self.traffic.counted(tensor.nbytes):
            self._group.send(self._to_group(tensor), to)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        with self.traffic.counted(0, num_collectives=0):
            received = torch.empty(shape, dtype=dtype, device=self._group.device)
            self._group.receive(received, source)
            return received.to(self._device)

    def synchronize(self) -> None:
        self._group.synchronize()

    def close(self) -> None:
        """The group's owner closes it."""

    def _to_group(self, tensor: Tensor) -> Tensor:
        """Returns the tensor on the group's device, contiguous."""
        return tensor.to(self._group.device).contiguous()


class ProcessGroupCollectives(GroupMessages, WithoutSlots):
    """The `Collectives` of ranks that need not be on one host; see GuardedGroup for the arguments.

    symmetric: adds up inside of graphs in place of NCCL, once `use_symmetric_memory` has found that it can.
    """

    def __init__(
        self,
        store: Store,
        ranks: list[int],
        rank: int,
        backend: str,
        device: torch.device,
        timeout_s: float,
        pairs: Sequence[tuple[int, int]] = (),
        is_over: IsOver = never,
    ) -> None:
        super().__init__(GuardedGroup(store, ranks, rank, backend, device, timeout_s, is_over, pairs), device)
        self.symmetric: SymmetricSum | None = None
        self._is_deferred = False
        self._store = store
        self.rank = self._group.rank
        self.num_ranks = len(ranks)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            if self.symmetric and torch.cuda.is_current_stream_capturing() and self.symmetric.serves(tensor):
                return self.symmetric.add_up(tensor.contiguous())
            summed = self._to_group(tensor)
            self._group.all_reduce(summed)
            return summed.to(self._device)

    def all_gather(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            return self._group.all_gather(self._to_group(tensor)).to(self._device)

    def synchronize(self) -> None:
        if not self._is_deferred:
            self._group.synchronize()

    @contextmanager
    def launching(self) -> Iterator[None]:
        # A rank that is lost leaves the kernels of symmetric memory running for ever, and a host that waits for them in
        # a call of CUDA's with them: nothing can stop them, so `synchronize` must look for itself.
        self._is_deferred = self.symmetric is None
        try:
            yield
        except RankLost:
            raise
        except Exception:
            self._is_deferred = False
            self._group.synchronize()  # if a rank was lost, that is why
            raise
        finally:
            self._is_deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        with self.launching():
            yield
        self._group.synchronize()

    def replayed(self, traffic: Traffic) -> None:
        self.traffic.add(traffic)
        self._group.launched()
        self.synchronize()

    def agree(self, is_so: bool) -> bool:
        votes = torch.tensor([int(is_so)], dtype=torch.int32, device=self._group.device)
        self._group.all_reduce(votes)
        self._group.synchronize()
        return int(votes) == self.num_ranks

    def use_symmetric_memory(self) -> str:
        """Tries torch's symmetric memory, with all ranks of the group. Returns why it is not used; empty if it is."""
        self.symmetric, reason = try_symmetric_memory(self._store, self.rank, self.num_ranks, self._device, self.agree)
        return reason

    def close(self) -> None:
        self._group.close()
