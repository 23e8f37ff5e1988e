"""The face of the collectives along one axis of the mesh, as tensor and pipeline parallelism need them.

It knows nothing of models, and nothing of how tensors travel: see collectives_shared_memory.py and
collectives_process_group.py for that, and connect.py for the choice between them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from parallel.comm.traffic import Traffic


class Collectives(Protocol):
    """Collectives of the ranks along one axis. All of them must make the same calls in the same order.

    rank: this one's place along the axis. Every call may raise RankLost, which names ranks of the whole run.
    """

    rank: int
    num_ranks: int
    traffic: Traffic

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, to the bit the same on all of them. May overwrite `tensor`."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[num_ranks, *shape]: the tensors of all ranks, which have one shape."""
        ...

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends to one rank, which must `receive` with the same shape and dtype; `tensor` may be overwritten after."""
        ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        """The next tensor that rank `source` has sent here, on this rank's device."""
        ...

    def close(self) -> None:
        """Leaves the others and frees what is held; may be called twice."""
        ...


class LocalCollectives:
    """Of an axis with one rank: nothing is sent anywhere. See `Collectives`."""

    def __init__(self) -> None:
        self.rank = 0
        self.num_ranks = 1
        self.traffic = Traffic()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor[None]

    def send(self, tensor: Tensor, to: int) -> None:
        raise AssertionError("there is no other rank to send to")

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        raise AssertionError("there is no other rank to receive from")

    def close(self) -> None:
        """Nothing to leave."""
