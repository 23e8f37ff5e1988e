"""A batch: the turns that requests take in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lp.scheduling.request_state import RequestState


class Turn(NamedTuple):
    """What a request does in a step.

    num_computed: how many of its first tokens have been computed after the step. decodes: whether it has a tree; if
    not, a chunk of its prompt is prefilled.
    """

    state: RequestState
    num_computed: int
    decodes: bool


@dataclass
class Batch:
    """The turns of one step.

    num_prefill: rows of prompts. num_waiting: prompts that will still have tokens to prefill after the step. num_rows:
    all rows. expected: tokens that the trees are expected to yield.
    started_at: in seconds of time.perf_counter().
    """

    turns: list[Turn]
    num_prefill: int = 0
    num_waiting: int = 0
    num_rows: int = 0
    expected: float = 0.0
    started_at: float = 0.0

    @property
    def decoding(self) -> list[RequestState]:
        return [turn.state for turn in self.turns if turn.decodes]

    @property
    def num_cached(self) -> int:
        """Tokens in the caches of all sequences."""
        return sum(len(turn.state.sequence.tokens) for turn in self.turns)
