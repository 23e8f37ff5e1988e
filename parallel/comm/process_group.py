"""The exchange over torch.distributed, for ranks on several hosts: gloo, or NCCL when the ranks hold GPUs.

Only integer tensors travel, no pickled objects. Knows nothing of what the integers mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.distributed import Store

from parallel.comm.base import IsOver, never
from parallel.comm.guarded_group import GuardedGroup
from parallel.comm.traffic import Traffic


class ProcessGroupExchange:
    """See `Exchange`, and GuardedGroup for the arguments."""

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
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [n]"
        with self.traffic.counted(mine.nbytes):
            return self._group.all_gather(torch.from_numpy(mine).to(self._group.device), timeout_s).cpu().numpy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "rank 0 and no other passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            length = torch.tensor([len(data or b"")], device=self._group.device)
            self._group.broadcast(length)
            if not int(length):
                return b""
            buffer = bytearray(data) if data is not None else bytearray(int(length))
            content = torch.frombuffer(buffer, dtype=torch.uint8).to(self._group.device)
            self._group.broadcast(content)
            return content.cpu().numpy().tobytes()

    def close(self) -> None:
        self._group.close()
