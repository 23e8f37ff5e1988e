"""Collectives for one rank whose other ranks do not exist: nothing is sent, but all of it is counted and charged."""

from __future__ import annotations

from torch import Tensor

from benchmarks.projections.network import Charges, all_gather, all_reduce
from parallel.comm.base import LocalCollectives


class LoneRank(LocalCollectives):
    """One rank of an axis whose other ranks do not exist; rank 0 by default.

    A sum lacks the other ranks' parts, and a gathered tensor holds copies of the rank's own. What a model computes with
    these collectives means nothing, but it takes the time of one rank's share.
    """

    def __init__(self, num_ranks: int, rank: int = 0) -> None:
        super().__init__()
        self.rank, self.num_ranks = rank, num_ranks
        self.charges = Charges()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        self.charges += all_reduce(tensor.nbytes, self.num_ranks)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        self.charges += all_gather(tensor.nbytes, self.num_ranks)
        return tensor.expand(self.num_ranks, *tensor.shape)

    def _count(self, tensor: Tensor) -> None:
        self.traffic.num_collectives += 1
        self.traffic.bytes_sent += tensor.nbytes
