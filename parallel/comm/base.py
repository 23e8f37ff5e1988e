"""The ways in which ranks talk: an `Exchange` of integers between all, `Messages` of tensors from one to another, and
`Collectives` of tensors along one axis.

Here are their protocols, their versions for a single rank, and the count of what was sent. Knows nothing of what is
sent, nor of how it travels: shared_memory.py, shared_tensors.py and process_group.py do that, and connect.py chooses.

Shapes: N ranks, I integers of one rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from parallel.comm.rows import GathersRows, Table

# Says whether the ranks are about to change. A rank that waits for another asks it some fifty times a second, and gives
# up the wait with EpochOver when the answer is yes.
IsOver = Callable[[], bool]


def never() -> bool:
    """The `IsOver` of a run in which the same ranks take part from beginning to end."""
    return False


@dataclass(frozen=True)
class SharedSlots:
    """Where the slots of a round lie in memory that ranks share, for native code that sums and gathers.

    slots: the address of two slots of `slot_bytes` for each rank, for even and odd rounds. rounds: that of the number
    of each rank's last round, `stride` bytes apart.
    """

    slots: int
    slot_bytes: int
    rounds: int
    stride: int


class Messages(Protocol):
    """Tensors that one rank sends to another. Every call may raise RankLost, and EpochOver where ranks may change.

    On a GPU with NCCL they are only launched: the current stream waits for what is received, and what is sent leaves
    on another stream. What was received is valid once `synchronize` has returned.
    """

    traffic: Traffic

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends to one rank, which must `receive` with the same shape and dtype. `tensor` may be overwritten after."""
        ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        """Returns the next tensor that rank `source` has sent to this rank, on this rank's device."""
        ...

    def synchronize(self) -> None:
        """Waits until everything that was launched has been done."""
        ...

    def close(self) -> None:
        """Leaves the others and frees what is held; may be called twice."""
        ...


class Exchange(Protocol):
    """Collectives over all ranks of a run. Every rank must make the same calls in the same order.

    All of them raise EpochOver in a run whose ranks may change. traffic: what this rank has sent; each call counts
    as one collective. messages: for tensors between two ranks, which have a traffic of their own; None where nobody
    sends any.
    """

    rank: int
    num_ranks: int
    traffic: Traffic
    messages: Messages | None

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """Gives every rank the integers of all ranks.

        mine: int32 [I], with the same I on all ranks. Returns a new int32 [N, I]. Raises RankLost.
        """
        ...

    def gather_rows(
        self, header: tuple[int, int], own: list[np.ndarray], tables: list[Table], ranks_per_replica: int = 1
    ) -> np.ndarray:
        """Fills tables by the rows that the replicas have of them.

        own: int32 [rows, C], this replica's rows of each table of which it has any. ranks_per_replica: neighbouring
        ranks that send the same. Returns the headers of all ranks, int32 [N, H], which hold until the next call. Raises
        RankLost.
        """
        ...

    def broadcast(self, data: bytes | None) -> bytes:
        """Gives every rank the bytes of rank 0, of any length; the other ranks pass None. Raises RankLost."""
        ...

    def close(self) -> None:
        """Leaves the exchange and frees what it holds; may be called twice."""
        ...


class Collectives(Messages, Protocol):
    """Collectives of the ranks along one axis of the mesh. All of them must make the same calls in the same order.

    On a GPU they are only launched, on the current stream, so that the host need not wait in each layer and a graph can
    capture them. Their results are valid once `synchronize` has returned: if a rank is lost, they are arbitrary.
    A rank that reads them sooner does not wait for ever: after the time limit a thread ends the collectives.

    rank: this rank's place along the axis. Every call may raise RankLost, which names ranks as the whole run counts
    them.
    """

    rank: int
    num_ranks: int

    @property
    def shared_slots(self) -> SharedSlots | None: ...

    round: int

    def look(self, place: int, waited_s: float) -> None:
        """Called now and then by native code that waits for the rank at a place. Raises if the wait is in vain."""
        ...

    def count(self, num_collectives: int, bytes_sent: int, seconds: float) -> None:
        """Counts what native code has done in the shared slots."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum over the ranks, equal to the bit on all of them. May overwrite `tensor`."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, which have one shape, as [N, *shape]."""
        ...

    def launching(self) -> AbstractContextManager[None]:
        """Makes `synchronize` do nothing in the body. An error of the body is RankLost if a rank is lost."""
        ...

    def deferred(self) -> AbstractContextManager[None]:
        """Puts `synchronize` off to the end of the body. An error of the body is RankLost if a rank is lost."""
        ...

    def replayed(self, traffic: Traffic) -> None:
        """Called after a graph was replayed that has collectives of this group in it. traffic: theirs."""
        ...

    def agree(self, is_so: bool) -> bool:
        """Whether all ranks say that it is so. Waits for them."""
        ...


class LocalExchange(GathersRows):
    """The `Exchange` of a run with one rank: answers each collective with this rank's own data."""

    messages: Messages | None = None

    def __init__(self) -> None:
        self.rank = 0
        self.num_ranks = 1
        self.traffic = Traffic()

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        self.traffic.num_collectives += 1
        return mine[None].copy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert data is not None, "rank 0 must pass the bytes that it broadcasts"
        self.traffic.num_collectives += 1
        return data

    def close(self) -> None:
        """There is nothing to leave."""


class WithoutSlots:
    """The part of `Collectives` that is the same wherever ranks have no shared slots."""

    traffic: Traffic
    shared_slots: SharedSlots | None = None
    round = 0

    def look(self, place: int, waited_s: float) -> None:
        """Nobody waits in memory that is not shared."""

    def count(self, num_collectives: int, bytes_sent: int, seconds: float) -> None:
        self.traffic.add(Traffic(num_collectives, bytes_sent, seconds))


class WaitsOnHost(WithoutSlots):
    """What all `Collectives` have in common whose calls wait for the other ranks themselves."""

    num_ranks: int

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def synchronize(self) -> None:
        """Nothing is launched."""

    def launching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def deferred(self) -> AbstractContextManager[None]:
        return nullcontext()

    def replayed(self, traffic: Traffic) -> None:
        """Nothing is launched."""

    def agree(self, is_so: bool) -> bool:
        return int(self.all_reduce(torch.tensor([float(is_so)]))) == self.num_ranks


class LocalCollectives(WaitsOnHost):
    """The `Collectives` along an axis with one rank: nothing is sent, and nothing is counted."""

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
        """There is nothing to leave."""


@dataclass
class Traffic:
    """What collectives cost one rank, counted where it is sent.

    num_collectives: collectives that have finished; a message to one rank counts as one, for its sender. bytes_sent:
    payload that this rank contributed, without headers and copies. seconds: host time spent in them, waiting included.
    """

    num_collectives: int = 0
    bytes_sent: int = 0
    seconds: float = 0.0

    @contextmanager
    def counted(self, num_bytes: int, num_collectives: int = 1) -> Iterator[None]:
        """Counts the collective in the body of `with` once it has succeeded."""
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin
        self.bytes_sent += num_bytes
        self.num_collectives += num_collectives

    def add(self, other: Traffic) -> None:
        """Counts what another has counted as well."""
        self.num_collectives += other.num_collectives
        self.bytes_sent += other.bytes_sent
        self.seconds += other.seconds

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.num_collectives + other.num_collectives,
            self.bytes_sent + other.bytes_sent,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.num_collectives - other.num_collectives,
            self.bytes_sent - other.bytes_sent,
            self.seconds - other.seconds,
        )
