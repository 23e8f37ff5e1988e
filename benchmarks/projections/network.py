"""What communication is charged in a projection, and the place of ranks that do not exist.

A collective costs a latency, and the bytes that a ring algorithm moves over each rank's link: for n bytes a rank and R
ranks, 2 n (R - 1) / R in an all-reduce, n (R - 1) in an all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parallel.comm.collectives import LocalCollectives


@dataclass(frozen=True)
class Charges:
    """Collectives, and bytes over one rank's link."""

    num_collectives: int = 0
    link_bytes: float = 0.0

    def __add__(self, other: Charges) -> Charges:
        return Charges(self.num_collectives + other.num_collectives, self.link_bytes + other.link_bytes)

    def __sub__(self, other: Charges) -> Charges:
        return Charges(self.num_collectives - other.num_collectives, self.link_bytes - other.link_bytes)


@dataclass(frozen=True)
class Network:
    """latency_us: microseconds of a collective. gb_per_s: 10^9 bytes a second over the link of each rank."""

    latency_us: float
    gb_per_s: float

    def seconds(self, charges: Charges) -> float:
        return charges.num_collectives * self.latency_us * 1e-6 + charges.link_bytes / (self.gb_per_s * 1e9)


def all_reduce(num_bytes: int, num_ranks: int) -> Charges:
    """num_bytes: of the tensor. Nothing is charged to a rank that is alone."""
    return Charges(1, 2 * num_bytes * (num_ranks - 1) / num_ranks) if num_ranks > 1 else Charges()


def all_gather(num_bytes: int, num_ranks: int) -> Charges:
    """num_bytes: of one rank's tensor."""
    return Charges(1, num_bytes * (num_ranks - 1)) if num_ranks > 1 else Charges()


class LoneRank(LocalCollectives):
    """Rank 0 of an axis whose other ranks do not exist: their parts of a sum are missing, and of what is gathered there
    are copies of its own. A model on it computes nothing of meaning, in the time that a rank's share takes.
    """

    def __init__(self, num_ranks: int) -> None:
        super().__init__()
        self.num_ranks = num_ranks
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
