"""The exchange between ranks of one host: a mailbox in shared memory (mailbox.py), no process group, no threads.

A collective is one or more rounds. In each round every rank publishes one message and reads those of all others, so a
rank can be at most one round ahead and two buffers suffice. Knows nothing of what the integers mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np
from torch.distributed import Store

from parallel.comm.base import EpochOver, IsOver, RankLost, never
from parallel.comm.mailbox import SLOT_BYTES, Mailbox, Message
from parallel.comm.peers import Peers
from parallel.comm.rendezvous import await_keys
from parallel.comm.shared_file import SharedFile
from parallel.comm.spin_wait import LIVENESS_S, SpinWait
from parallel.comm.traffic import Traffic

_GATHER, _BROADCAST = 1, 2
_NAMES = {_GATHER: "an all-gather", _BROADCAST: "a broadcast"}
_PATH_KEY = "mailbox_path"


class SharedMemoryExchange:
    """See `Exchange`. All ranks construct it at the same time with the same Store; afterwards the Store is not needed.

    timeout_s: seconds that a collective waits for the others. Raises RankLost if the others do not come.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, timeout_s: float, is_over: IsOver = never) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.traffic = Traffic()
        self._timeout_s = timeout_s
        self._is_over = is_over
        self._number = 0
        self._peers = Peers(list(range(num_ranks)), [])
        with shared_path(store, rank, 0, timeout_s, is_over, lambda: Mailbox.create(num_ranks)) as path:
            self._mailbox: Mailbox | None = Mailbox(path, rank, num_ranks)
            self._meet()

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        with self.traffic.counted(mine.nbytes):
            return self._all_gather(mine, self._timeout_s if timeout_s is None else timeout_s)

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "rank 0 and no other passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            return self._broadcast(memoryview(data or b""))

    def close(self) -> None:
        if self._mailbox is not None:
            self._mailbox.leave()
            self._mailbox.close()
            self._mailbox = None

    def _meet(self) -> None:
        """The first collective carries the process ids, so that a rank that dies later can be noticed."""
        pids = self._all_gather(np.array([os.getpid()], dtype=np.int32), self._timeout_s)[:, 0].tolist()
        self._peers = Peers(list(range(self.num_ranks)), pids)

    def _all_gather(self, mine: np.ndarray, timeout_s: float) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [n]"
        gathered = np.empty((self.num_ranks, mine.size), dtype=np.int32)
        target = gathered.view(np.uint8)
        source = memoryview(mine.tobytes())
        for begin in range(0, max(1, len(source)), SLOT_BYTES):
            messages = self._round(_GATHER, len(source), source[begin : begin + SLOT_BYTES], timeout_s)
            for rank, message in enumerate(messages):
                self._check_size(rank, message, len(source))
                target[rank, begin : begin + SLOT_BYTES] = np.frombuffer(message.part, np.uint8)
        return gathered

    def _broadcast(self, mine: memoryview) -> bytes:
        received = bytearray()
        begin = 0
        while True:
            messages = self._round(_BROADCAST, len(mine), mine[begin : begin + SLOT_BYTES], self._timeout_s)
            received += messages[0].part
            begin += SLOT_BYTES
            if begin >= messages[0].total:
                return bytes(received)

    def _round(self, kind: int, total: int, part: memoryview, timeout_s: float) -> list[Message]:
        """Publishes one part and returns the messages of all ranks, this one's included."""
        assert self._mailbox is not None, "this exchange is closed"
        self._number += 1
        self._mailbox.publish(self._number, kind, total, part)
        messages = [
            Message(kind, total, part) if rank == self.rank else self._await(self._mailbox, rank, timeout_s)
            for rank in range(self.num_ranks)
        ]
        for rank, message in enumerate(messages):
            if message.kind != kind:
                raise RuntimeError(
                    f"rank {rank} is in {_NAMES[message.kind]} while rank {self.rank} is in {_NAMES[kind]}: "
                    "the ranks no longer do the same (parallel.debug=true names the step at which they part)"
                )
        return messages

    def _await(self, mailbox: Mailbox, rank: int, timeout_s: float) -> Message:
        spin_wait = SpinWait()
        next_look = LIVENESS_S
        while (message := mailbox.read(rank, self._number)) is None:
            waited = spin_wait.pause()
            if waited > next_look:
                if self._is_over():
                    raise EpochOver
                self._check_present(mailbox)
                next_look = waited + LIVENESS_S
            if waited > timeout_s:
                raise self._peers.late(self._missing(mailbox), timeout_s)
        return message

    def _missing(self, mailbox: Mailbox) -> list[int]:
        others = (rank for rank in range(self.num_ranks) if rank != self.rank)
        return [rank for rank in others if mailbox.read(rank, self._number) is None]

    def _check_present(self, mailbox: Mailbox) -> None:
        """Raises RankLost for an awaited rank that will never come."""
        for rank in self._peers.known:
            gone = "it has left the run" if mailbox.has_left(rank) else self._peers.why_gone(rank)
            # Read last: what a rank published before it went is still valid.
            if gone and rank in self._missing(mailbox):
                raise self._peers.lost(rank, gone)

    def _check_size(self, rank: int, message: Message, total: int) -> None:
        if message.total != total:
            raise RuntimeError(
                f"rank {rank} sent {message.total} bytes to an all-gather where rank {self.rank} sent {total}: the "
                "ranks no longer do the same (parallel.debug=true names the step at which they part)"
            )


@contextmanager
def shared_path(
    store: Store, rank: int, leader: int, timeout_s: float, is_over: IsOver, create: Callable[[], SharedFile]
) -> Iterator[str]:
    """The path of a file that the leader creates, as long as the body runs: there, every rank maps it and they meet.

    Ranks as the run counts them. Raises RankLost and EpochOver.
    """
    if rank == leader:
        with closing(create()) as file:
            store.set(_PATH_KEY, file.path)
            yield file.path
    elif await_keys(store, [_PATH_KEY], timeout_s, is_over):
        raise RankLost(
            f"rank {leader} did not set up the shared memory within {timeout_s:g} s. See rank {leader}'s own output, "
            "then start the run again.",
            (leader,),
        )
    else:
        yield store.get(_PATH_KEY).decode()
