"""The face of runners: they hold models and caches, and answer the token trees of the sequences that they have opened.

Parallelism is a property of the runner alone: lp/single_device.py has the one for a single device, the package
`parallel.runners` those for several ranks. No runner knows what a window or a draft is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from lp.request import Sequence
from lp.tree import TokenTree
from lp.verification import Answers


@dataclass(frozen=True)
class StepInput:
    """One step of one sequence.

    sequence: one that the runner has opened. tree: the rows to answer; its root is the sequence's last token.
    num_candidates: K, best tokens wanted for each row; 0 is the target alone. fingerprint: checksum of the decoder's
    state where ranks are to compare theirs, else 0.
    """

    sequence: Sequence
    tree: TokenTree
    num_candidates: int = 0
    fingerprint: int = 0


class Runner(Protocol):
    """Answers batches of steps, which are finished in the order in which they were started.

    depth: batches that may be under way at the same time. num_parts: parts that a tree is split into. cache_bytes: size
    of this rank's KV caches.
    """

    depth: int
    num_parts: int

    @property
    def cache_bytes(self) -> int: ...

    def open(self, sequence: Sequence) -> None:
        """Takes a sequence in."""
        ...

    def start(self, steps: list[StepInput]) -> None:
        """Sets a batch under way, each step of another sequence."""
        ...

    def finish(self) -> list[Answers]:
        """Waits for the oldest batch under way; answers for every row of each step's tree."""
        ...

    def abandon(self) -> None:
        """Forgets the batches under way, whose answers nobody wants any more."""
        ...

    def close(self, sequence: Sequence) -> None:
        """Lets a sequence go that has no step under way."""
        ...


class ForwardRunner(ABC):
    """A runner whose steps are over as soon as they are started: one `forward` each."""

    depth = 1
    num_parts = 1

    def __init__(self) -> None:
        self._finished: deque[list[Answers]] = deque()

    @property
    @abstractmethod
    def cache_bytes(self) -> int: ...

    @abstractmethod
    def open(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def close(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def forward(self, step: StepInput) -> Answers:
        """Answers for every row of a step's tree."""

    def start(self, steps: list[StepInput]) -> None:
        self._finished.append([self.forward(step) for step in steps])

    def finish(self) -> list[Answers]:
        return self._finished.popleft()

    def abandon(self) -> None:
        self._finished.clear()
