"""Collectives for one rank whose other ranks do not exist: nothing is sent, but all of it is counted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parallel.comm.base import LocalCollectives, SharedSlots, Traffic

SLOT_BYTES = 1 << 20
# The number of a round that is never reached: a rank that has said it is waited for no more.
LAST_ROUND = 1 << 62
# Each rank's number has a cache line of its own: so many words.
LINE = 8


class LoneRank(LocalCollectives):
    """One rank of an axis whose other ranks do not exist; rank 0 by default.

    The other ranks' parts are zeros. What a model computes with these collectives means nothing, but it takes the time
    of one rank's share. Native code finds the zeros in slots, as if all other ranks had come first.
    """

    def __init__(self, num_ranks: int, rank: int = 0) -> None:
        super().__init__()
        self.rank, self.num_ranks = rank, num_ranks
        self._slots = torch.zeros(2 * num_ranks * SLOT_BYTES, dtype=torch.uint8)
        self._rounds = np.full((num_ranks, LINE), LAST_ROUND, np.int64)
        rounds_at: int = self._rounds.__array_interface__["data"][0]
        self.shared_slots = SharedSlots(self._slots.data_ptr(), SLOT_BYTES, rounds_at, LINE * 8)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        gathered = tensor.new_zeros(self.num_ranks, *tensor.shape)
        gathered[self.rank] = tensor
        return gathered

    def agree(self, is_so: bool) -> bool:
        return is_so

    def count(self, num_collectives: int, bytes_sent: int, seconds: float) -> None:
        """Counts what native code has done."""
        self.traffic.add(Traffic(num_collectives, bytes_sent, seconds))

    def _count(self, tensor: Tensor) -> None:
        self.traffic.num_collectives += 1
        self.traffic.bytes_sent += tensor.nbytes
