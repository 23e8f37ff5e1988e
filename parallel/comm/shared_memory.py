"""The exchange between ranks of one host: a mailbox in shared memory (mailbox.py), without process group or threads.

A collective takes one or more rounds. In each round every rank publishes one message and reads those of all others, so
a rank can be at most one round ahead and two buffers suffice. Knows nothing of what the integers mean.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
from torch.distributed import Store

from parallel.comm.base import IsOver, Messages, never
from parallel.comm.mailbox import SLOT_BYTES, Mailbox, MailboxMessage
from parallel.comm.peers import Peers
from parallel.comm.shared_file import shared_path
from parallel.comm.spin_wait import wait_for
from parallel.comm.traffic import Traffic
from parallel.errors import EpochOver

_GATHER, _BROADCAST = 1, 2
_NAMES = {_GATHER: "an all-gather", _BROADCAST: "a broadcast"}


class SharedMemoryExchange:
    """The `Exchange` of ranks that all run on one host.

    All ranks construct it at the same time with the same Store, which is not needed afterwards. timeout_s: seconds that
    a collective waits for the others. Raises RankLost if the others do not come.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, timeout_s: float, is_over: IsOver = never) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.traffic = Traffic()
        self.messages: Messages | None = None
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
        assert (data is not None) == (self.rank == 0), "only rank 0 passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            return self._broadcast(memoryview(data or b""))

    def close(self) -> None:
        if self.messages is not None:
            self.messages.close()
        if self._mailbox is not None:
            self._mailbox.leave()
            self._mailbox.close()
            self._mailbox = None

    def _meet(self) -> None:
        """Exchanges the process ids, so that every rank can notice when another dies."""
        pids = self._all_gather(np.array([os.getpid()], dtype=np.int32), self._timeout_s)[:, 0].tolist()
        self._peers = Peers(list(range(self.num_ranks)), pids)

    def _all_gather(self, mine: np.ndarray, timeout_s: float) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [I]"
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

    def _round(self, kind: int, total: int, part: memoryview, timeout_s: float) -> list[MailboxMessage]:
        """Publishes one part of this rank's payload and returns the messages of all ranks, this one's included."""
        assert self._mailbox is not None, "this exchange is closed"
        self._number += 1
        self._mailbox.publish(self._number, kind, total, part)
        messages = [
            MailboxMessage(kind, total, part) if rank == self.rank else self._receive(self._mailbox, rank, timeout_s)
            for rank in range(self.num_ranks)
        ]
        for rank, message in enumerate(messages):
            if message.kind != kind:
                raise RuntimeError(
                    f"rank {rank} is in {_NAMES[message.kind]} while rank {self.rank} is in {_NAMES[kind]}: "
                    "the ranks no longer do the same (parallel.debug=true names the step at which they part)"
                )
        return messages

    def _receive(self, mailbox: Mailbox, rank: int, timeout_s: float) -> MailboxMessage:
        """Returns that rank's message of this round, once it is there. Raises RankLost and EpochOver."""
        # Read before any wait is set up, which takes longer than reading.
        return mailbox.read(rank, self._number) or self._await(mailbox, rank, timeout_s)

    def _await(self, mailbox: Mailbox, rank: int, timeout_s: float) -> MailboxMessage:
        read, look = partial(mailbox.read, rank, self._number), partial(self._look, mailbox)
        try:
            return wait_for(read, look, timeout_s)
        except TimeoutError:
            missing = [other for other in range(self.num_ranks) if self._is_missing(mailbox, other)]
            raise self._peers.late(missing, timeout_s) from None

    def _look(self, mailbox: Mailbox) -> None:
        """Raises what ends a wait that is in vain."""
        if self._is_over():
            raise EpochOver
        self._peers.check_present(mailbox.has_left, partial(self._is_missing, mailbox))

    def _is_missing(self, mailbox: Mailbox, rank: int) -> bool:
        """Says whether this round's message of that rank has not arrived yet."""
        return rank != self.rank and mailbox.read(rank, self._number) is None

    def _check_size(self, rank: int, message: MailboxMessage, total: int) -> None:
        if message.total != total:
            raise RuntimeError(
                f"rank {rank} sent {message.total} bytes to an all-gather where rank {self.rank} sent {total}: the "
                "ranks no longer do the same (parallel.debug=true names the step at which they part)"
            )
