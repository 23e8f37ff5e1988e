"""Decides whose step comes next. Requests take turns, one step at a time, so that a long one starves nobody.

A request for whose keys and values there is no room waits until an earlier one ends (lp/scheduling/room.py).

The same requests in the same order give the same schedule on every rank, as no decision depends on a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lp.generation import Generation
from lp.scheduling.room import Room
from lp.verification import Answers


@dataclass
class Batch:
    """Generations whose steps were started together.

    answers: one for each generation; None until the runner has finished the batch.
    """

    generations: list[Generation]
    answers: list[Answers] | None = None

    def remove(self, generation: Generation) -> None:
        """Removes a generation and its answers, which must be there already."""
        assert self.answers is not None
        at = self.generations.index(generation)
        del self.generations[at], self.answers[at]


class Scheduler:
    """The generations that wait for their next step, in the order of their turns.

    room: for the keys and values of all that have not ended.
    """

    def __init__(self, room: Room | None = None):
        """room: None is without a bound."""
        self.room = room or Room()
        self._turns: deque[Generation] = deque()
        # All that have not ended, in the order of their arrival. The values mean nothing.
        self._running: dict[Generation, None] = {}

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, generation: Generation) -> None:
        """Gives a generation the last turn."""
        self._running.setdefault(generation)
        self._turns.append(generation)

    def next_batch(self) -> list[Generation]:
        """The generations whose steps to start together; none if nobody waits that has room.

        They stay listed until `remove`.
        """
        fitting = set(self.room.fitting(self._running))
        return next(([generation] for generation in self._turns if generation in fitting), [])

    def remove(self, generations: Iterable[Generation]) -> None:
        """Removes generations whose steps have been started."""
        for generation in generations:
            self._turns.remove(generation)

    def end(self, generation: Generation) -> None:
        """Forgets a generation that has ended, and frees its room."""
        del self._running[generation]
        if generation in self._turns:
            self._turns.remove(generation)

    def clear(self) -> None:
        self._turns.clear()
        self._running.clear()
