"""Copies keys and values between replicas. All ranks carry out the same copies in the same order, so none waits for one
that waits for it.

A copy says what there is to be copied, not what is right: a replica that has lost what it is to send computes it again
first, and one that cannot use what it gets computes it itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from lp.kv_cache.cache import KVCache
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import NO_ROWS
from parallel.comm.base import Messages
from parallel.runners.copy_cost import Copy

# The most bytes of a message, so that its sender, the way and its receiver are busy at the same time.
MESSAGE_BYTES = 2**22


class Copying:
    """One rank's part in copies.

    num_tokens: that this rank has received. inner: this rank's own runner. replica: this rank's. A replica of several
    ranks sends rank by rank: each holds the same part of the keys and values as its counterpart in another replica.
    """

    def __init__(self, inner: SingleDevice, messages: Messages, rank: int, ranks_per_replica: int):
        """inner: this rank's own runner. rank: this rank's number in the run."""
        self.num_tokens = 0
        self.inner = inner
        self.messages = messages
        self.replica, self._member = divmod(rank, ranks_per_replica)
        self._ranks_per_replica = ranks_per_replica

    def carry_out(self, copies: Sequence[Copy], sequences: Sequence[TokenSequence]) -> None:
        """Sends and receives what this rank has to. sequences: of the steps. Raises RankLost and EpochOver."""
        for copy in copies:
            if copy.source == self.replica:
                self._send(copy, sequences[copy.step])
            elif copy.target == self.replica:
                self._receive(copy, sequences[copy.step])

    def _send(self, copy: Copy, sequence: TokenSequence) -> None:
        cache = self.inner.settled_cache(sequence)
        if cache.length < copy.end:  # some of it has been evicted
            self.inner.launch([StepInput(sequence, NO_ROWS, copy.end)])()
            cache = self.inner.settled_cache(sequence)
        for begin, end in self._parts(copy):
            self.messages.send(cache.export(begin, end), self.rank_in(copy.target))

    def _receive(self, copy: Copy, sequence: TokenSequence) -> None:
        cache = self.inner.settled_cache(sequence)
        length = cache.length
        try:
            self._append(copy, cache)
            self.messages.settle()
        except BaseException:  # on a GPU, what was appended may never have arrived
            cache.length = min(cache.length, length)
            raise

    def _append(self, copy: Copy, cache: KVCache) -> None:
        model = self.inner.model
        for begin, end in self._parts(copy):
            size = (end - begin) * model.numbers_per_token
            numbers = self.messages.receive((size,), model.dtype, self.rank_in(copy.source))
            if begin <= cache.length < end:
                cache.length = begin
                cache.append(numbers, model.cache_shapes)
                self.num_tokens += end - begin

    def rank_in(self, replica: int) -> int:
        """This rank's counterpart in another replica."""
        return replica * self._ranks_per_replica + self._member

    def _parts(self, copy: Copy) -> Iterator[tuple[int, int]]:
        """The tokens of each message."""
        model = self.inner.model
        most = max(1, MESSAGE_BYTES // (model.numbers_per_token * model.dtype.itemsize))
        for begin in range(copy.begin, copy.end, most):
            yield begin, min(copy.end, begin + most)


def checksum_of_caches(inner: SingleDevice) -> int:
    """A number that is the same on ranks whose caches can be copied to each other."""
    model = inner.model
    layout = model.device.type, str(model.dtype), type(model.fast).__name__, sorted(model.cache_shapes.items())
    return zlib.crc32(repr(layout).encode()) & 0x7FFFFFFF
