"""What communication costs a rank, counted where it happens rather than estimated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Traffic:
    """The counts of one rank.

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
