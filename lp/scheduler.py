"""Decides whose steps come next. Requests take turns, one step in each batch, so that a long one starves nobody.

The same requests in the same order give the same schedule on every rank: no decision looks at a clock.
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
        """Puts a generation last in turn."""
        self._turns.append(generation)

    def next_batch(self) -> list[Generation]:
        """Those whose steps are to be started together; empty if nobody waits. They keep their turns until `remove`."""
        return [self._turns[0]] if self._turns else []

    def remove(self, generations: Iterable[Generation]) -> None:
        """Takes generations out: their steps have been started, or they have ended."""
        for generation in generations:
            self._turns.remove(generation)

    def clear(self) -> None:
        self._turns.clear()
