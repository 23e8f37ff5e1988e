"""Collectives along an axis through shared memory, for ranks of one host that compute on the CPU.

Each rank owns two slots, for odd and even rounds, which the others read in place; each ordered pair of ranks has a ring
of slots for messages. A number written after the payload says that the payload is complete, so the processor must keep
the order of writes (x86 does; see `keeps_order`).

Shapes: N ranks, B bytes of a slot of a round, S slots of a ring, C bytes of each.
"""

from __future__ import annotations

import mmap
import os
import platform

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Store

from parallel.comm.base import IsOver, SharedSlots, Traffic, WaitsOnHost, never
from parallel.comm.peers import Peers, wait_for
from parallel.comm.shared_memory import SharedFile, shared_path
from parallel.errors import EpochOver, RankLost

_SLOT_BYTES = 1 << 20  # what a round carries; larger tensors take several
RING_SLOTS = 16
_RING_SLOT_BYTES = 1 << 16
_LEFT, _LEFT_FOR = 1, 2  # a rank's word once it has left; the second, plus a place, if it left as that rank is lost
_LINE = 8  # each word that a rank writes has a cache line of its own: so many words


def keeps_order() -> bool:
    """Says whether this processor shows its writes to others in the order in which it made them."""
    return platform.machine().lower() in ("x86_64", "amd64")


class SharedMemoryCollectives(WaitsOnHost):
    """The `Collectives` of ranks that all run on one host.

    All ranks construct it at the same time with the same Store, which is not needed afterwards. ranks: who takes part,
    as the run counts them. timeout_s: seconds that a rank waits for another. is_over: see IsOver. ring_slots: S.
    Raises RankLost, and EpochOver.
    """

    def __init__(
        self,
        store: Store,
        ranks: list[int],
        rank: int,
        timeout_s: float,
        is_over: IsOver = never,
        ring_slots: int = RING_SLOTS,
    ) -> None:
        self.rank = ranks.index(rank)
        self.num_ranks = len(ranks)
        self.traffic = Traffic()
        self._timeout_s = timeout_s
        self._is_over = is_over
        self.round = 0
        self._ranks = ranks
        self._peers = Peers(ranks, [])
        self._ring_slots = ring_slots
        layout = _Layout(self.num_ranks, ring_slots)
        with shared_path(store, rank, ranks[0], timeout_s, is_over, lambda: SharedFile(layout.num_bytes)) as path:
            self._map(path, layout)
            pids = self.all_gather(torch.tensor([os.getpid()])).flatten().tolist()
        self._peers = Peers(ranks, pids)
        self.traffic = Traffic()

    def _map(self, path: str, layout: _Layout) -> None:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), layout.num_bytes)  # lives as long as the views below
        words = np.frombuffer(memory, np.int64, layout.num_words)
        content = torch.frombuffer(memory, dtype=torch.uint8, offset=layout.num_words * 8)
        self._left, self._rounds, self._written, self._read = layout.split_words(words)
        self._slots, self._rings = layout.split_content(content)
        rounds_at = self._rounds.__array_interface__["data"][0]
        self.shared_slots: SharedSlots | None = SharedSlots(self._slots.data_ptr(), _SLOT_BYTES, rounds_at, _LINE * 8)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Adds in the order of the ranks, in the tensor's own dtype."""
        with self.traffic.counted(tensor.nbytes):
            flat = tensor.contiguous().view(-1)
            summed = torch.empty_like(flat)
            step = _SLOT_BYTES // flat.element_size()
            for begin in range(0, flat.numel(), step):
                parts = self._exchange(flat[begin : begin + step])
                out = summed[begin : begin + step]
                torch.add(parts[0], parts[1], out=out)
                for part in parts[2:]:
                    out += part
            return summed.view(tensor.shape)

    def all_gather(self, tensor: Tensor) -> Tensor:
        with self.traffic.counted(tensor.nbytes):
            flat = tensor.contiguous().view(-1)
            gathered = flat.new_empty(self.num_ranks, flat.numel())
            step = _SLOT_BYTES // flat.element_size()
            for begin in range(0, flat.numel(), step):
                for row, part in zip(gathered, self._exchange(flat[begin : begin + step]), strict=True):
                    row[begin : begin + step] = part
            return gathered.view(self.num_ranks, *tensor.shape)

    def send(self, tensor: Tensor, to: int) -> None:
        with self.traffic.counted(tensor.nbytes):
            content = tensor.contiguous().view(-1).view(torch.uint8)
            for begin in range(0, len(content), _RING_SLOT_BYTES):
                number = int(self._written[self.rank, to])
                self._await(self._read[self.rank, to : to + 1], number + 1 - self._ring_slots, to)
                part = content[begin : begin + _RING_SLOT_BYTES]
                self._rings[self.rank, to, number % self._ring_slots, : len(part)] = part
                self._written[self.rank, to] = number + 1

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        with self.traffic.counted(0, num_collectives=0):
            received = torch.empty(shape, dtype=dtype)
            content = received.view(-1).view(torch.uint8)
            for begin in range(0, len(content), _RING_SLOT_BYTES):
                number = int(self._read[source, self.rank])
                self._await(self._written[source, self.rank : self.rank + 1], number + 1, source)
                part = content[begin : begin + _RING_SLOT_BYTES]
                part.copy_(self._rings[source, self.rank, number % self._ring_slots, : len(part)])
                self._read[source, self.rank] = number + 1
            return received

    def close(self) -> None:
        self._left[self.rank] = self._left[self.rank] or _LEFT

    def look(self, place: int, waited_s: float) -> None:
        if waited_s > self._timeout_s:
            raise self._late(place)
        self._look(self._rounds[place : place + 1], self.round + 1)

    def _exchange(self, mine: Tensor) -> list[Tensor]:
        """Publishes one part and returns views of the parts of all ranks, valid until the round after the next."""
        self.round += 1
        number, buffer, size = self.round, self.round % 2, mine.nbytes
        self._slots[self.rank, buffer, :size] = mine.view(torch.uint8)
        self._rounds[self.rank] = number
        for place in range(self.num_ranks):
            if place != self.rank:
                self._await(self._rounds[place : place + 1], number, place)
        return [self._slots[place, buffer, :size].view(mine.dtype) for place in range(self.num_ranks)]

    def _await(self, word: np.ndarray, number: int, place: int) -> None:
        """Waits until the word [1] that the rank at this place writes has come to `number`. Raises RankLost."""
        if word[0] >= number:
            return
        try:
            wait_for(lambda: word[0] >= number, lambda: self._look(word, number), self._timeout_s)
        except TimeoutError:
            raise self._late(place) from None

    def _late(self, place: int) -> RankLost:
        """The error about a rank that has not come in time, for which this one leaves."""
        self._left[self.rank] = _LEFT_FOR + place
        return self._peers.late([place], self._timeout_s)

    def _look(self, word: np.ndarray, number: int) -> None:
        """Raises RankLost if any rank has gone: the awaited rank would wait for that one, too.

        The error names the rank that was lost first. A rank that leaves because of it says so before it goes, since
        another may look so late that both are gone. Raises EpochOver, too.
        """
        if self._is_over():
            raise EpochOver
        try:
            self._peers.check_present(
                lambda place: self._left[place] != 0, lambda place: word[0] < number, self._lost_before
            )
        except RankLost as error:
            self._left[self.rank] = _LEFT_FOR + self._ranks.index(error.ranks[0])
            raise

    def _lost_before(self, place: int) -> int:
        """The place of the rank whose loss made the rank at a place leave; that rank's own place if there is none."""
        said = int(self._left[place]) - _LEFT_FOR
        return said if said >= 0 and said != self.rank else place


class _Layout:
    """The layout of the file: first the words, then the slots of the rounds, then the rings."""

    def __init__(self, num_ranks: int, ring_slots: int) -> None:
        self.num_ranks, self.ring_slots = num_ranks, ring_slots
        self.num_words = (2 * num_ranks + 2 * num_ranks**2) * _LINE
        self.slots_bytes = num_ranks * 2 * _SLOT_BYTES
        self.rings_bytes = num_ranks**2 * ring_slots * _RING_SLOT_BYTES
        self.num_bytes = self.num_words * 8 + self.slots_bytes + self.rings_bytes

    def split_words(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns four views of the words (int64).

        By rank [N]: whether it has left, and its last round. By sender and receiver [N, N]: parts written, parts read.
        """
        n = self.num_ranks
        strided = words.reshape(-1, _LINE)[:, 0]
        left, rounds, pairs = strided[:n], strided[n : 2 * n], strided[2 * n :].reshape(2, n, n)
        return left, rounds, pairs[0], pairs[1]

    def split_content(self, content: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the slots of the rounds [N, 2, B], and the rings by sender and receiver [N, N, S, C] (uint8)."""
        slots, rings = content[: self.slots_bytes], content[self.slots_bytes : self.slots_bytes + self.rings_bytes]
        n = self.num_ranks
        return slots.view(n, 2, _SLOT_BYTES), rings.view(n, n, self.ring_slots, _RING_SLOT_BYTES)
