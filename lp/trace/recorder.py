"""Records the steps of one request that asks for it. Costs a request that does not ask one comparison a step.

A step is recorded in three moments: when its answers have come (who computed what, and how long it took), before the
decoder learns from them (the tree and its sources), and when its output is made, which nobody waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lp.decoder import Decoder, Described
from lp.trace.step import LETTERS, StepTrace
from lp.tree import TokenTree


class BatchFigures(NamedTuple):
    """What a batch of steps took. rows, sequences: see StepTrace. seconds: from its start to its answers. expected_s:
    by the step-time curve; None if there is none.
    """

    rows: int
    sequences: int
    seconds: float
    expected_s: float | None


@dataclass(slots=True)
class RecordedStep:
    """A step that has been verified, of which no trace has been made yet. ranks: see StepTrace; None is rank 0."""

    tree: TokenTree
    described: Described
    figures: BatchFigures
    ranks: str | None
    rows: list[int]
    emitted: list[int]

    def trace(self, step: int) -> StepTrace:
        """step: its number."""
        num_rows, num_sequences, seconds, expected_s = self.figures
        sources, window, pool = self.described
        return StepTrace(
            step,
            *self.tree.as_lists(),
            "".join(map(LETTERS.__getitem__, sources)),
            self.ranks or "0" * len(self.tree),
            self.rows[1 : len(self.emitted) + 1],
            self.emitted,
            num_rows,
            num_sequences,
            int(1e5 * seconds + 0.5) / 100,  # as `round` takes a hundred times as long
            None if expected_s is None else int(1e5 * expected_s + 0.5) / 100,
            window and [*window],
            pool,
        )


class TraceRecorder:
    """Records one request's steps, in their order.

    figures: what the batch of the next step took. ranks: see RecordedStep. Both are set before the step is committed.
    """

    def __init__(self) -> None:
        self.figures = BatchFigures(0, 0, 0.0, None)
        self.ranks: str | None = None
        self._tree: TokenTree
        self._described: Described

    def note_tree(self, tree: TokenTree, decoder: Decoder) -> None:
        """Notes what the decoder has planned, before it learns from the answers."""
        self._tree, self._described = tree, decoder.described()

    def committed(self, rows: list[int], emitted: list[int]) -> RecordedStep:
        """rows: for each accepted token the row whose target it is. emitted: those of the tokens that count."""
        return RecordedStep(self._tree, self._described, self.figures, self.ranks, rows, emitted)
