"""Decides whose step comes next. Requests take turns, one step at a time, so that a long one starves nobody.

The same requests in the same order give the same schedule on every rank, as no decision depends on a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from lp.generation import Generation


class Scheduler:
    """The generations that wait for their next step, in the order of their turns."""

    def __init__(self) -> None:
        self._turns: deque[Generation] = deque()

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, generation: Generation) -> None:
        """Gives a generation the last turn."""
        self._turns.append(generation)

    def next_batch(self) -> list[Generation]:
        """The generations whose steps to start together; none if nobody waits. They stay listed until `remove`."""
        return [self._turns[0]] if self._turns else []

    def remove(self, generations: Iterable[Generation]) -> None:
        """Removes generations whose steps have been started, or that have ended."""
        for generation in generations:
            self._turns.remove(generation)

    def clear(self) -> None:
        self._turns.clear()
