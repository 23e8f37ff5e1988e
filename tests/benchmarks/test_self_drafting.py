"""What the measurement of self-drafting counts as right, and the ceiling that follows from it."""

from __future__ import annotations

import pytest

from benchmarks.self_drafting import ceiling, first_choices
from lp.trace import StepTrace


def step(parents: list[int], accepted: list[int]) -> StepTrace:
    return StepTrace(
        0, list(range(len(parents))), parents, "r" * len(parents), "0" * len(parents), accepted, [], 1, 1, 1.0
    )


def test_first_choices_along_the_accepted_path() -> None:
    """Node 2 is the second choice after the root, and 3 the first after that."""
    assert first_choices(step([-1, 0, 0, 2, 2, 3], [2, 3])) == [(1, False), (2, True), (3, False)]


def test_nothing_is_said_of_depths_that_have_no_drafts() -> None:
    assert first_choices(step([-1], [])) == []
    assert first_choices(step([-1, 0], [1])) == [(1, True)]


def test_the_ceiling_is_that_of_the_best_chain() -> None:
    assert ceiling([1.0, 1.0, 0.0], 0.5) == (pytest.approx(1.5), 2)
    assert ceiling([0.1], 0.5) == (1.0, 0)
