"""Plans the trees of all sequences of a step together."""

from __future__ import annotations

from collections.abc import Sequence

from lp.generation import Generation
from lp.step_cost import StepTimes
from lp.tree import TokenTree


def plan_together(
    generations: Sequence[Generation], rooms: Sequence[int], times: StepTimes | None, num_parts: int, num_fed: int
) -> list[TokenTree]:
    """The trees of a step. rooms: positions that the model has after each sequence's last token."""
    return [generation.plan(room) for generation, room in zip(generations, rooms, strict=True)]
