"""A file of shared memory through which the ranks of one host pass numbered messages.

Every rank owns two slots, for odd and for even message numbers, and writes nowhere else. A slot holds its message's
number, kind, lengths and bytes, and a checksum over all of them. The reader computes the checksum again over its own
copy. On processors that reorder memory operations (ARM), the number may become visible before the bytes: then the
checksums differ, and the message counts as not there yet.

Knows only how messages lie in the file and when they can be read; shared_memory.py waits for them.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import NamedTuple

from parallel.comm.shared_file import SharedFile

SLOT_BYTES = 64 * 1024  # payload of one message; a longer payload takes several
_WORD = 8
_HEADER_WORDS = 5  # number, checksum, kind, total length, length of this part
_HEADER_BYTES = _HEADER_WORDS * _WORD
_STRIDE = _HEADER_BYTES + SLOT_BYTES
_CHECKED = struct.Struct("=qqq")  # what the checksum covers before the payload: kind, total length, length of this part
_CHECKED_AT = 2 * _WORD
_NUM_BUFFERS = 2


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
        if zlib.crc32(checked, number & 0xFFFFFFFF) != self._words[word + 1]:
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


def _file_bytes(num_ranks: int) -> int:
    return num_ranks * (_WORD + _NUM_BUFFERS * _STRIDE)
