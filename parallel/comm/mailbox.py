"""One file of shared memory through which the ranks of one host pass numbered messages.

Every rank owns two slots, for odd and for even message numbers, and writes nowhere else. A slot shows its message's
number, kind, lengths and bytes, and a checksum over all of them, which the reader computes again over its own copy: on
processors that reorder memory operations (ARM), a number that becomes visible before its bytes reads as "not there
yet".

Knows layout and visibility only; who waits for whom is shared_memory.py's matter.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import NamedTuple

from parallel.comm.shared_file import SharedFile

SLOT_BYTES = 64 * 1024  # payload of one message; longer ones go in several
_WORD = 8
_HEADER_WORDS = 5  # number, checksum, kind, total length, length of this part
_HEADER_BYTES = _HEADER_WORDS * _WORD
_STRIDE = _HEADER_BYTES + SLOT_BYTES
_CHECKED = struct.Struct("=qqq")  # what the checksum covers before the payload: kind, total length, length of this part
_CHECKED_AT = 2 * _WORD
_NUM_BUFFERS = 2


class Message(NamedTuple):
    """kind: the collective it belongs to. total: bytes of the whole payload, of which `part` may be only a stretch."""

    kind: int
    total: int
    part: memoryview


class Mailbox:
    """A mapped mailbox file for `num_ranks` ranks, seen from `rank`."""

    def __init__(self, path: str, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._first_slot = num_ranks * _WORD  # before the slots, one word for each rank: has it left?
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._memory = mmap.mmap(descriptor, _file_bytes(num_ranks))
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes.cast("q")

    @staticmethod
    def create(num_ranks: int) -> SharedFile:
        """Makes the file of an empty mailbox. The caller closes it."""
        return SharedFile(_file_bytes(num_ranks))

    def publish(self, number: int, kind: int, total: int, part: memoryview) -> None:
        """Shows message `number` to all ranks. Every rank must have read this rank's message `number - 2`."""
        start = self._slot(self._rank, number)
        end = start + _HEADER_BYTES + len(part)
        checked = start + _CHECKED_AT
        _CHECKED.pack_into(self._bytes, checked, kind, total, len(part))
        self._bytes[start + _HEADER_BYTES : end] = part
        self._words[start // _WORD + 1] = zlib.crc32(self._bytes[checked:end], number & 0xFFFFFFFF)
        self._words[start // _WORD] = number

    def read(self, rank: int, number: int) -> Message | None:
        """A copy of that rank's message `number`, or None as long as it is not (wholly) visible."""
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
        return Message(kind, total, memoryview(checked)[_CHECKED.size :])

    def leave(self) -> None:
        """Shows the others that this rank will publish nothing more."""
        self._words[self._rank] = 1

    def has_left(self, rank: int) -> bool:
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
