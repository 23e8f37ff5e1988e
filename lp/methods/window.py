"""The lookahead window: W columns of Jacobi iterations, N-1 levels deep (arXiv 2402.02057, section 3.1).

A window adds its cells to a tree, reads their targets, yields n-grams and slides. Knows nothing of the model.

The cell at level r and column c stands 1 + c + r positions after the root. Level 0 is the oldest iteration. Its cells
form a chain under the root; a cell of any other level is the child of the cell above it, (r-1, c). So a column holds
N-1 tokens at consecutive positions, each from a later iteration than the one before. Together with the target of the
column's last cell they are an n-gram.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from lp.tree import TreeBuilder


class Window:
    """The window of one sequence. It starts with one level and gains one in each step until it is full."""

    def __init__(self, columns: int, levels: int, source: Sequence[int], seed: int):
        """columns: W. levels: N-1. source: tokens (the prompt) from which cells without a guess are drawn at random."""
        assert columns >= 1 and levels >= 1 and source
        self.columns = columns
        self.num_levels = levels
        self.source = list(source)
        self.random = random.Random(seed)
        self.cells: list[list[int]] = self._fill([[]])
        # Rows of the newest level in the tree planned last.
        self._newest = slice(0)

    @property
    def depth(self) -> int:
        """Depth of its deepest cell below the root."""
        return self.columns + len(self.cells) - 1

    @property
    def num_cells(self) -> int:
        return sum(len(level) for level in self.cells)

    def resize(self, columns: int) -> None:
        """Drops the last columns, or adds columns of random tokens."""
        self.columns = columns
        self.cells = self._fill([level[:columns] for level in self.cells])

    def plan(self, builder: TreeBuilder) -> None:
        """Adds all cells to the tree, under the root."""
        self.place(len(builder.tokens))
        above = range(0)
        for level, tokens in enumerate(self.cells):
            parents = above if level else [0, *range(len(builder.tokens), len(builder.tokens) + len(tokens) - 1)]
            above = builder.extend(tokens, parents, depths=range(level + 1, level + 1 + len(tokens)))

    def place(self, first_row: int) -> None:
        """Notes that all cells were added to a tree, level by level, from a row on."""
        end = first_row + self.num_cells
        self._newest = slice(end - self.columns, end)

    def commit(self, targets: np.ndarray, num_accepted: int) -> list[tuple[int, ...]]:
        """Reads the targets [R] of the tree planned last and slides by the number of accepted tokens.

        Returns an n-gram of N tokens for each column, or nothing until the window is full.
        """
        newest = [max(0, token) for token in targets[self._newest].tolist()]  # NOT_A_TOKEN becomes a token all the same
        is_full = len(self.cells) == self.num_levels
        ngrams = list(zip(*self.cells, newest, strict=True)) if is_full else []
        # The root moves by num_accepted positions. Dropping the oldest level already moves every other one by one.
        levels = [*self.cells[1:], newest] if is_full else [*self.cells, newest]
        shift = num_accepted - 1 if is_full else num_accepted
        self.cells = self._fill([level[shift:] for level in levels])
        return ngrams

    def slide(self, count: int) -> None:
        """Moves on by a number of tokens that have come without a step of the window."""
        self.cells = self._fill([level[count:] for level in self.cells])

    def _fill(self, levels: list[list[int]]) -> list[list[int]]:
        """The levels, each filled up at its end with random tokens of the source."""
        missing = self.columns - len(levels[0])
        if not missing:
            return levels
        fresh = self.random.choices(self.source, k=missing * len(levels))
        return [[*level, *fresh[row * missing : (row + 1) * missing]] for row, level in enumerate(levels)]
