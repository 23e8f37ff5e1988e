"""The exchange between ranks of one host: a mailbox in shared memory, without process group or threads.

A collective takes one or more rounds. In each round every rank publishes one message and reads those of all others, so
a rank can be at most one round ahead and two buffers suffice. Here is also the file that the processes of a host share.
Where every rank has the library of native functions, a round of an all-gather is one call of it. Knows nothing of what
the integers mean.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple, TypeVar
from weakref import finalize

import numpy as np
from torch.distributed import Store

from lp.platform.library import Library, address, library
from parallel.comm.base import IsOver, Messages, Traffic, never
from parallel.comm.peers import Peers, await_keys, wait_for
from parallel.comm.rows import HEADER, GathersRows, Table, message_length
from parallel.errors import EpochOver, RankLost

_Result = TypeVar("_Result")
# How often a rank with a core of its own looks for the others before it lends that core to somebody else, about 50 us,
# and how long it lends the core before the wait goes on in Python.
NUM_NATIVE_SPINS, NATIVE_WAIT_US = 1000, 200
_GATHER, _BROADCAST = 1, 2
_NAMES = {_GATHER: "an all-gather", _BROADCAST: "a broadcast"}


class SharedMemoryExchange(GathersRows):
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
        self._headers = np.empty((num_ranks, HEADER), np.int32)
        self._native: NativeMailbox | None = None
        self._peers = Peers(list(range(num_ranks)), [])
        with shared_path(store, rank, 0, timeout_s, is_over, lambda: Mailbox.create(num_ranks)) as path:
            self._mailbox: Mailbox | None = Mailbox(path, rank, num_ranks)
            self._meet()

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1 and mine.flags.c_contiguous, "an all-gather takes int32 [I]"
        if self._native is not None and (num_bytes := mine.nbytes) <= SLOT_BYTES:
            begin, traffic = time.perf_counter(), self.traffic
            gathered = self._gather_natively(self._native, mine)
            traffic.seconds += time.perf_counter() - begin
            traffic.bytes_sent += num_bytes
            traffic.num_collectives += 1
            return gathered
        with self.traffic.counted(mine.nbytes):
            return self._all_gather(mine)

    def gather_rows(
        self, header: tuple[int, int], own: list[np.ndarray], tables: list[Table], ranks_per_replica: int = 1
    ) -> np.ndarray:
        num_bytes = 4 * message_length(tables, self.num_ranks // ranks_per_replica)
        if (native := self._native) is None or num_bytes > SLOT_BYTES:
            return super().gather_rows(header, own, tables, ranks_per_replica)
        begin, traffic = time.perf_counter(), self.traffic
        self._number += 1
        number, how = self._number, (tables, self._headers, ranks_per_replica, num_bytes)
        state = native.gather_rows(number, *header, own, *how, NATIVE_WAIT_US)
        if state != -1:
            self._finish(state, lambda: native.gather_rows(number, 0, 0, None, *how, 0), num_bytes)
        traffic.seconds += time.perf_counter() - begin
        traffic.bytes_sent += num_bytes
        traffic.num_collectives += 1
        return self._headers

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "only rank 0 passes the bytes of a broadcast"
        with self.traffic.counted(len(data or b"")):
            return self._broadcast(memoryview(data or b""))

    def close(self) -> None:
        if self.messages is not None:
            self.messages.close()
        if self._mailbox is not None:
            self._mailbox.leave()
            self._native = None
            self._mailbox.close()
            self._mailbox = None

    def _meet(self) -> None:
        """Exchanges the process ids, by which each rank notices that another has died, and who has the library."""
        native = library()
        own = np.array([os.getpid(), native is not None], dtype=np.int32)
        pids, have_library = self._all_gather(own).T
        self._peers = Peers(list(range(self.num_ranks)), pids.tolist())
        if native is not None and have_library.all() and self._mailbox is not None:
            self._native = NativeMailbox(native, self._mailbox.address, self.rank, self.num_ranks)

    def _all_gather(self, mine: np.ndarray) -> np.ndarray:
        gathered = np.empty((self.num_ranks, mine.size), dtype=np.int32)
        target = gathered.view(np.uint8)
        source = memoryview(mine.tobytes())
        for begin in range(0, max(1, len(source)), SLOT_BYTES):
            messages = self._round(_GATHER, len(source), source[begin : begin + SLOT_BYTES])
            for rank, message in enumerate(messages):
                self._check_size(rank, message, len(source))
                target[rank, begin : begin + SLOT_BYTES] = np.frombuffer(message.part, np.uint8)
        return gathered

    def _gather_natively(self, native: NativeMailbox, mine: np.ndarray) -> np.ndarray:
        """An all-gather of one round by the library."""
        self._number += 1
        gathered = np.empty((self.num_ranks, mine.size), dtype=np.int32)
        state = native.gather(self._number, mine, gathered, mine.nbytes, NATIVE_WAIT_US)
        if state != -1:
            self._finish(state, lambda: native.gather(self._number, None, gathered, mine.nbytes, 0), mine.nbytes)
        return gathered

    def _finish(self, state: int, attempt: Callable[[], int], num_bytes: int) -> None:
        """Finishes a round of the library that has not everything yet. state: of the first attempt."""
        if state >= 0:
            state = -self._await(lambda: max(0, -attempt()))
        if state < -1:
            assert self._mailbox is not None, "this exchange is closed"
            message = self._mailbox.read(rank := -2 - state, self._number)
            assert message is not None, "it has arrived"
            self._check_kind(rank, message, _GATHER)
            self._check_size(rank, message, num_bytes)

    def _broadcast(self, mine: memoryview) -> bytes:
        received = bytearray()
        begin = 0
        while True:
            messages = self._round(_BROADCAST, len(mine), mine[begin : begin + SLOT_BYTES])
            received += messages[0].part
            begin += SLOT_BYTES
            if begin >= messages[0].total:
                return bytes(received)

    def _round(self, kind: int, total: int, part: memoryview) -> list[MailboxMessage]:
        """Publishes one part of this rank's payload and returns the messages of all ranks, this one's included."""
        assert self._mailbox is not None, "this exchange is closed"
        self._number += 1
        self._mailbox.publish(self._number, kind, total, part)
        messages = [
            MailboxMessage(kind, total, part) if rank == self.rank else self._receive(self._mailbox, rank)
            for rank in range(self.num_ranks)
        ]
        for rank, message in enumerate(messages):
            self._check_kind(rank, message, kind)
        return messages

    def _receive(self, mailbox: Mailbox, rank: int) -> MailboxMessage:
        """Returns that rank's message of this round, once it is there. Raises RankLost and EpochOver."""
        # Read before any wait is set up, which takes longer than reading.
        return mailbox.read(rank, self._number) or self._await(partial(mailbox.read, rank, self._number))

    def _await(self, attempt: Callable[[], _Result | None]) -> _Result:
        """What `attempt` returns once that is something true. Raises RankLost and EpochOver."""
        mailbox = self._mailbox
        assert mailbox is not None, "this exchange is closed"
        try:
            return wait_for(attempt, partial(self._look, mailbox), self._timeout_s)
        except TimeoutError:
            missing = [other for other in range(self.num_ranks) if self._is_missing(mailbox, other)]
            raise self._peers.late(missing, self._timeout_s) from None

    def _look(self, mailbox: Mailbox) -> None:
        """Raises what ends a wait that is in vain."""
        if self._is_over():
            raise EpochOver
        self._peers.check_present(mailbox.has_left, partial(self._is_missing, mailbox))

    def _is_missing(self, mailbox: Mailbox, rank: int) -> bool:
        """Says whether this round's message of that rank has not arrived yet."""
        return rank != self.rank and mailbox.read(rank, self._number) is None

    def _check_kind(self, rank: int, message: MailboxMessage, kind: int) -> None:
        if message.kind != kind:
            raise RuntimeError(
                f"rank {rank} is in {_NAMES[message.kind]} while rank {self.rank} is in {_NAMES[kind]}: "
                "the ranks no longer do the same (parallel.debug=true names the step at which they part)"
            )

    def _check_size(self, rank: int, message: MailboxMessage, total: int) -> None:
        if message.total != total:
            raise RuntimeError(
                f"rank {rank} sent {message.total} bytes to an all-gather where rank {self.rank} sent {total}: the "
                "ranks no longer do the same (parallel.debug=true names the step at which they part)"
            )


SLOT_BYTES = 64 * 1024  # payload of one message; a longer payload takes several
_WORD = 8
_HEADER_WORDS = 5  # number, checksum, kind, total length, length of this part
_HEADER_BYTES = _HEADER_WORDS * _WORD
_STRIDE = _HEADER_BYTES + SLOT_BYTES
_CHECKED = struct.Struct("=qqq")  # what the checksum covers before the payload: kind, total length, length of this part
_CHECKED_AT = 2 * _WORD
_NUM_BUFFERS = 2
# In place of the checksum of a message that the library wrote; see lp/platform/csrc/exchange.h.
_WRITTEN_NATIVELY = -1


class MailboxMessage(NamedTuple):
    """A message as it was read.

    kind: the collective that it belongs to. total: bytes of the whole payload. part: the bytes in this message.
    """

    kind: int
    total: int
    part: memoryview


class Mailbox:
    """The mapped mailbox file of `num_ranks` ranks, as `rank` uses it."""

    def __init__(self, path: str, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._first_slot = num_ranks * _WORD  # before the slots, each rank has a word that says whether it has left
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._memory = mmap.mmap(descriptor, _file_bytes(num_ranks))
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes.cast("q")
        # Of the first slot.
        self.address = address(np.frombuffer(self._memory, np.uint8)) + self._first_slot

    @staticmethod
    def create(num_ranks: int) -> SharedFile:
        """Creates the file of an empty mailbox. The caller closes it."""
        return SharedFile(_file_bytes(num_ranks))

    def publish(self, number: int, kind: int, total: int, part: memoryview) -> None:
        """Shows this rank's message `number` to all ranks, which must have read its message `number - 2`."""
        start = self._slot(self._rank, number)
        end = start + _HEADER_BYTES + len(part)
        checked = start + _CHECKED_AT
        _CHECKED.pack_into(self._bytes, checked, kind, total, len(part))
        self._bytes[start + _HEADER_BYTES : end] = part
        self._words[start // _WORD + 1] = zlib.crc32(self._bytes[checked:end], number & 0xFFFFFFFF)
        self._words[start // _WORD] = number

    def read(self, rank: int, number: int) -> MailboxMessage | None:
        """Returns a copy of that rank's message `number`, or None as long as not all of it is visible."""
        start = self._slot(rank, number)
        word = start // _WORD
        if self._words[word] != number:
            return None
        length = self._words[word + 4]
        if not 0 <= length <= SLOT_BYTES:
            return None
        checked = bytes(self._bytes[start + _CHECKED_AT : start + _HEADER_BYTES + length])
        checksum = self._words[word + 1]
        if checksum != _WRITTEN_NATIVELY and zlib.crc32(checked, number & 0xFFFFFFFF) != checksum:
            return None
        kind, total, _ = _CHECKED.unpack_from(checked)
        return MailboxMessage(kind, total, memoryview(checked)[_CHECKED.size :])

    def leave(self) -> None:
        """Shows the others that this rank will publish nothing more."""
        self._words[self._rank] = 1

    def has_left(self, rank: int) -> bool:
        """Says whether that rank will publish nothing more."""
        return self._words[rank] != 0

    def close(self) -> None:
        """Unmaps the file."""
        self._words.release()
        self._bytes.release()
        self._memory.close()

    def _slot(self, rank: int, number: int) -> int:
        return self._first_slot + (rank * _NUM_BUFFERS + number % _NUM_BUFFERS) * _STRIDE


class NativeMailbox:
    """A mailbox in which all ranks gather by the library, in rounds of one message each."""

    def __init__(self, native: Library, first_slot: int, rank: int, num_ranks: int) -> None:
        """first_slot: its address."""
        spins = NUM_NATIVE_SPINS if num_ranks <= (os.cpu_count() or 1) else 0
        mailbox = native.mailbox_new(first_slot, _STRIDE, rank, num_ranks, spins)
        finalize(self, native.mailbox_free, mailbox)
        # Each publishes this rank's message, if one is given, and waits a little for those of the others. It returns -1
        # if all are there, the number of a rank whose is not, or -2 - r if that of rank r is something else.
        self.gather: Callable[..., int] = partial(native.mailbox_gather, mailbox)
        self.gather_rows: Callable[..., int] = partial(native.mailbox_gather_rows, mailbox)


def _file_bytes(num_ranks: int) -> int:
    return num_ranks * (_WORD + _NUM_BUFFERS * _STRIDE)


MEMORY_FOLDER = "/dev/shm"
_PREFIX = "lookahead-parallel-"
_PATH_KEY = "shared_memory_path"


class SharedFile:
    """A file of zeros in memory, for this user only.

    `path` opens it until `close`; a process that has mapped it keeps it. Raises OSError if there is no room.
    """

    def __init__(self, num_bytes: int) -> None:
        self._is_unnamed = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
        if self._is_unnamed:
            self._descriptor = os.memfd_create(_PREFIX + "memory")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self.path = tempfile.mkstemp(prefix=_PREFIX, dir=_folder())
        try:
            # Written, not only sized: touching a hole later, with memory full, would kill the process with SIGBUS.
            with open(self._descriptor, "wb", closefd=False) as file:
                file.write(bytes(num_bytes))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Takes the path away."""
        if not self._is_unnamed:
            os.unlink(self.path)
        os.close(self._descriptor)


@contextmanager
def shared_path(
    store: Store, rank: int, leader: int, timeout_s: float, is_over: IsOver, create: Callable[[], SharedFile]
) -> Iterator[str]:
    """Gives every rank the path of a file that the leader creates. In the body all ranks map the file and meet.

    The path is taken away when the leader's body ends. rank, leader: as the run counts them. Raises RankLost and
    EpochOver.
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


def _folder() -> str:
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else tempfile.gettempdir()
