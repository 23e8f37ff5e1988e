"""Copies keys and values between replicas, and between groups.

Within a group, all ranks carry out the same copies in the same order, so none waits for one that waits for it.

A copy says what there is to be copied, not what is right: a replica that has lost what it is to send computes it again
first, and one that cannot use what it gets computes it itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from lp.kv_cache.cache import KVCache, OutOfRoom
from lp.model.causal import CausalModel
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import NO_ROWS
from parallel.comm.base import Messages
from parallel.runners.copy_cost import Copy

# The most bytes of a message, so that its sender, the way and its receiver are busy at the same time.
MESSAGE_BYTES = 2**22
# The most bytes of a sequence that are read between two steps.
PIECE_BYTES = 2**23


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
        cache = self.inner.committed_cache(sequence)
        if cache.length < copy.end:  # some of it has been evicted
            self.inner.launch([StepInput(sequence, NO_ROWS, copy.end)])()
            cache = self.inner.committed_cache(sequence)
        for begin, end in self._parts(copy):
            self.messages.send(cache.export(begin, end), self.rank_in(copy.target))

    def _receive(self, copy: Copy, sequence: TokenSequence) -> None:
        cache = self.inner.committed_cache(sequence)
        length = cache.length
        try:
            self._append(copy, cache)
            self.messages.synchronize()
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
        most = tokens_in(MESSAGE_BYTES, self.inner.model)
        for begin in range(copy.begin, copy.end, most):
            yield begin, min(copy.end, begin + most)


class CacheTransfer:
    """Reads the keys and values of a sequence as bytes, piece by piece while it goes on, and writes those of one that
    moves here before it comes.

    layout: the same on ranks that can use each other's.
    """

    def __init__(self, inner: SingleDevice):
        self.layout = checksum_of_caches(inner)
        self._inner = inner
        self._arriving: dict[str, KVCache] = {}

    def length(self, sequence_id: str) -> int:
        """How many tokens of a sequence can be read here; 0 if it is not open, or if the model has recurrent layers,
        whose states are not sent.
        """
        state = self._inner.states.get(sequence_id)
        return state.cache.length if state and state.cache.states is None else 0

    @torch.inference_mode()
    def read(self, sequence_id: str, begin: int) -> tuple[int, bytes]:
        """Returns where they end, and some of the keys and values from token `begin` on, which must be cached."""
        cache = self._inner.states[sequence_id].cache
        end = min(cache.length, begin + tokens_in(PIECE_BYTES, self._inner.model))
        return end, cache.export(begin, end).view(torch.uint8).cpu().numpy().tobytes()

    def write(self, sequence_id: str, begin: int, data: bytes) -> None:
        """Keeps keys and values for a sequence that is not open yet. What does not come next is left out."""
        model = self._inner.model
        if begin == 0:
            self.drop(sequence_id)
            self._arriving[sequence_id] = model.memory.open()
        cache = self._arriving.get(sequence_id)
        if cache is None or cache.length != begin:  # it has been evicted, or there was no room
            return
        with suppress(OutOfRoom):
            numbers = torch.frombuffer(bytearray(data), dtype=model.dtype).to(model.device)
            cache.append(numbers, model.cache_shapes)

    def take(self, sequence_id: str) -> int:
        """Gives an open sequence what was written for it. Returns how many of its tokens are cached."""
        cache, state = self._arriving.pop(sequence_id, None), self._inner.states.get(sequence_id)
        if cache is None:
            return 0
        if state is None:  # it was refused
            cache.release()
            return 0
        state.drop()
        state.cache = cache
        return cache.length

    def drop(self, sequence_id: str) -> None:
        """Frees what was written for a sequence."""
        if cache := self._arriving.pop(sequence_id, None):
            cache.release()


def tokens_in(num_bytes: int, model: CausalModel) -> int:
    """How many tokens' keys and values so many bytes hold; at least one."""
    return max(1, num_bytes // (model.numbers_per_token * model.dtype.itemsize))


def checksum_of_caches(inner: SingleDevice) -> int:
    """A number that is the same on ranks whose caches can be copied to each other."""
    model = inner.model
    layout = model.device.type, str(model.dtype), type(model.fast).__name__, sorted(model.cache_shapes.items())
    return zlib.crc32(repr(layout).encode()) & 0x7FFFFFFF
