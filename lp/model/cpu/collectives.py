"""What the native code needs to sum and gather over the ranks that share a model."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from lp.model.program.group import RankGroup

# Looks of a waiting rank before it yields its core, if every thread of every rank has a core.
SPINS = 20_000

_Look = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_double)
_Call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_long)


class _Group(ctypes.Structure):
    """Group in kernels/collective.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rank", "num_ranks")),
        ("slots", ctypes.c_void_p), ("slot_bytes", ctypes.c_long),
        ("rounds", ctypes.c_void_p), ("stride", ctypes.c_long), ("round", ctypes.c_long), ("spins", ctypes.c_long),
        ("look", _Look), ("call", _Call),
        *((name, ctypes.c_long) for name in ("failed", "num_collectives", "bytes_sent")),
        ("seconds", ctypes.c_double),
    ]  # fmt: skip


class Collectives:
    """The collectives of a step that native code runs. address: of its Group."""

    def __init__(self, group: RankGroup, collect: Callable[[RankGroup, int, int, int], None]):
        """collect: carries out the collective of an instruction for rows [first, first + num_rows) where native code
        cannot: (group, instruction, first, num_rows).
        """
        self._group, self._num_cores = group, os.cpu_count() or 1
        self._error: BaseException | None = None
        shared = group.shared_slots
        self._is_shared = shared is not None
        self._native = _Group(
            rank=group.rank,
            num_ranks=group.num_ranks,
            slots=shared.slots if shared else None,
            slot_bytes=shared.slot_bytes if shared else 0,
            rounds=shared.rounds if shared else None,
            stride=shared.stride if shared else 0,
            look=_Look(self._caught(group.look)),
            call=_Call(self._caught(lambda *where: collect(group, *where))),
        )
        self.address = ctypes.addressof(self._native)

    def begin(self, num_threads: int) -> None:
        """Prepares a step. num_threads: of this rank."""
        native = self._native
        native.round = self._group.round
        native.spins = SPINS if num_threads * self._group.num_ranks <= self._num_cores else 0
        native.failed = 0

    def end(self) -> None:
        """Counts what a part of a step has done. Raises what has ended it."""
        native = self._native
        self._group.round = native.round
        if self._is_shared:  # else what was called has counted them
            self._group.count(native.num_collectives, native.bytes_sent, native.seconds)
        native.num_collectives = native.bytes_sent = 0
        native.seconds = 0.0
        if (error := self._error) is not None:
            self._error = None
            raise error

    def _caught(self, call: Callable[..., None]) -> Callable[..., int]:
        """A function for native code: 0, or 1 where it raises, which `end` then does."""

        def caught(*args: int | float) -> int:
            try:
                call(*args)
            except BaseException as error:
                self._error = error
                return 1
            return 0

        return caught
