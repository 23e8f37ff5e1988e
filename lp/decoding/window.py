"""The lookahead window: W columns of Jacobi iterations, N-1 levels deep (arXiv 2402.02057, section 3.1).

Adds its cells to a tree, reads their targets, yields n-grams and slides. Knows nothing of the model.

Cell (level r, column c) stands 1 + c + r positions after the root. Level 0 is the oldest iteration: its cell c is the
child of its cell c-1; a cell of level r > 0 is the child of the cell above it, (r-1, c). So a column is N-1 tokens at
consecutive positions, each from a later iteration than the one before, and with the target of its last cell an n-gram.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from lp.tree import TreeBuilder


class Window:
    """The window of one sequence. It warms up: it starts with one level and gains one each step."""

    def __init__(self, columns: int, levels: int, source: Sequence[int], seed: int):
        """columns: W. levels: N-1. source: tokens that cells without a guess are drawn from (the prompt)."""
        assert columns >= 1 and levels >= 1 and source
        self.columns = columns
        self.num_levels = levels
        self.source = list(source)
        self.random = random.Random(seed)
        self.cells: list[list[int]] = self._filled([[]])
        self._newest = slice(0)
        """Rows of the newest level in the tree planned last."""

    @property
    def depth(self) -> int:
        """Depth of its deepest cell below the root."""
        return self.columns + len(self.cells) - 1

    @property
    def num_cells(self) -> int:
        return sum(len(level) for level in self.cells)

    def resize(self, columns: int) -> None:
        """Drops the far columns, or adds some that have no guess yet."""
        self.columns = columns
        self.cells = self._filled([level[:columns] for level in self.cells])

    def plan(self, builder: TreeBuilder) -> None:
        """Adds all cells to the tree, under the root."""
        above = range(0)
        for level, tokens in enumerate(self.cells):
            parents = above if level else [0, *range(len(builder.tokens), len(builder.tokens) + len(tokens) - 1)]
            above = builder.extend(tokens, parents, depths=range(level + 1, level + 1 + len(tokens)))
        self._newest = slice(above.start, above.stop)

    def commit(self, targets: np.ndarray, num_accepted: int) -> list[tuple[int, ...]]:
        """Reads the targets [R] of the tree planned last and slides by the number of accepted tokens.

        Returns an n-gram of N tokens for each column; none while the window is warming up.
        """
        newest = [max(0, token) for token in targets[self._newest].tolist()]  # a guess is a token, whatever the answer
        is_full = len(self.cells) == self.num_levels
        ngrams = list(zip(*self.cells, newest, strict=True)) if is_full else []
        # The root has moved by num_accepted. Dropping the oldest level moves every remaining one by a position itself.
        levels = [*self.cells[1:], newest] if is_full else [*self.cells, newest]
        shift = num_accepted - 1 if is_full else num_accepted
        self.cells = self._filled([level[shift:] for level in levels])
        return ngrams

    def _filled(self, levels: list[list[int]]) -> list[list[int]]:
        """Levels of equal length, with cells that have no guess yet at their far end."""
        missing = self.columns - len(levels[0])
        if not missing:
            return levels
        fresh = self.random.choices(self.source, k=missing * len(levels))
        return [[*level, *fresh[row * missing : (row + 1) * missing]] for row, level in enumerate(levels)]
