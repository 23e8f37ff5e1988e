"""A batch: the turns that requests take in one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lp.runner.runner import StepInput
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

    num_prefill: rows of prompts. num_waiting: prompts that will still have tokens to prefill after a step that prefills
    some; else 0. steps: what the runner is given, once it is planned. expected: tokens that the trees are expected to
    yield. started_at: in seconds of time.perf_counter(). seconds: from then, or from the end of the batch before, to
    the answers. host_s: from the end of the batch before to the start of this one; 0 if they overlap.
    """

    turns: list[Turn]
    num_prefill: int = 0
    num_waiting: int = 0
    steps: list[StepInput] = field(default_factory=list[StepInput])
    expected: float = 0.0
    started_at: float = 0.0
    seconds: float = 0.0
    host_s: float = 0.0

    @property
    def decoding(self) -> list[RequestState]:
        return [turn.state for turn in self.turns if turn.decodes]

    @property
    def num_rows(self) -> int:
        """All rows of the step."""
        return self.num_prefill + sum(len(step.tree) for step in self.steps if step.tree.scored is None)

    @property
    def num_cached(self) -> int:
        """Tokens in the caches of all sequences after the step."""
        return sum(step.num_computed for step in self.steps)
