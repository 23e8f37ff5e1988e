"""The lookahead window agrees with the paper's figure, worked out by hand: W = 5 columns, N = 4, so three levels."""

from __future__ import annotations

import numpy as np
import pytest

from lp.methods.window import Window
from lp.tree import TokenTree, TreeBuilder

PROMPT = [90, 91, 92]


def plan(window: Window) -> TokenTree:
    builder = TreeBuilder(1)
    window.plan(builder)
    return builder.build()


def answer(tree: TokenTree, step: int) -> np.ndarray:
    """Targets that tell their step and their position relative to the root: 100 * step + depth + 1."""
    return 100 * step + tree.depths + 1


def warmed_up(columns: int = 5, levels: int = 3) -> tuple[Window, int]:
    """A full window, and the number of steps that it took to fill. Every step accepts one token."""
    window, step = Window(columns, levels, PROMPT, seed=0), 0
    while len(window.cells) < levels:
        window.commit(answer(plan(window), step), 1)
        step += 1
    return window, step


def test_it_starts_as_one_level_drawn_from_the_prompt() -> None:
    window = Window(5, 3, PROMPT, seed=0)
    assert len(window.cells) == 1 and len(window.cells[0]) == 5
    assert set(window.cells[0]) <= set(PROMPT)
    assert window.cells == Window(5, 3, PROMPT, seed=0).cells
    assert any(window.cells != Window(5, 3, PROMPT, seed=seed).cells for seed in range(1, 6))


def test_it_gains_a_level_each_step_of_its_warm_up() -> None:
    window = Window(5, 3, PROMPT, seed=0)
    for step in range(2):
        assert window.commit(answer(plan(window), step), 1) == []
        assert len(window.cells) == step + 2
        assert all(len(level) == 5 for level in window.cells)
    assert len(window.commit(answer(plan(window), 2), 1)) == 5
    assert len(window.cells) == 3


@pytest.mark.parametrize("num_accepted", [1, 2, 4])
def test_it_keeps_positions_while_it_warms_up(num_accepted: int) -> None:
    """Targets tell the position that they are for. Cell (r, c) must stand 1 + c + r after the new root."""
    window = Window(5, 3, PROMPT, seed=0)
    window.commit(answer(plan(window), 3), num_accepted)
    # The new level's targets stand 2 + c after the old root, and the new root is num_accepted positions further on.
    kept = [300 + position for position in range(2 + num_accepted, 7)]
    assert window.cells[1][: len(kept)] == kept
    for column, token in enumerate(kept):
        assert token - 300 - num_accepted == 1 + column + 1


def test_cells_see_what_they_see_in_the_figure() -> None:
    """Cell (r, c) sees level 0 up to its own column, and its own column down to itself."""
    window, _ = warmed_up()
    tree = plan(window)
    assert len(tree) == 1 + 5 * 3
    for level in range(3):
        for column in range(5):
            row = 1 + 5 * level + column
            assert tree.tokens[row] == window.cells[level][column]
            assert tree.depths[row] == 1 + column + level
            over = [1 + c for c in range(column + 1)] + [1 + 5 * r + column for r in range(1, level + 1)]
            assert tree.path(row) == [0, *over]
    assert window.depth == tree.depths.max() == 7


def test_an_ngram_is_a_column_and_its_newest_target() -> None:
    window, step = warmed_up()
    before = [list(level) for level in window.cells]
    ngrams = window.commit(answer(plan(window), step), 1)
    for column, ngram in enumerate(ngrams):
        newest = 100 * step + 1 + column + 2 + 1
        assert ngram == (before[0][column], before[1][column], before[2][column], newest)


def test_it_slides_by_one_by_dropping_its_oldest_level() -> None:
    window, step = warmed_up()
    before = [list(level) for level in window.cells]
    window.commit(answer(plan(window), step), 1)
    newest = [100 * step + depth for depth in range(4, 9)]
    assert window.cells == [before[1], before[2], newest]


@pytest.mark.parametrize("num_accepted", [2, 3, 6, 9])
def test_it_slides_by_as_many_as_were_accepted(num_accepted: int) -> None:
    window, step = warmed_up()
    before = [list(level) for level in window.cells]
    window.commit(answer(plan(window), step), num_accepted)
    newest = [100 * step + depth for depth in range(4, 9)]
    num_kept = max(0, 5 - (num_accepted - 1))
    for level, old in zip(window.cells, [before[1], before[2], newest], strict=True):
        assert len(level) == 5
        assert level[:num_kept] == old[num_accepted - 1 :]
        assert set(level[num_kept:]) <= set(PROMPT)


def test_every_cell_keeps_its_position_over_many_steps() -> None:
    """Each cell contains its own absolute position, and must still do so however often the window slides."""
    rng = np.random.default_rng(0)
    for columns, levels in [(1, 1), (5, 1), (1, 4), (4, 3), (15, 4)]:
        window, root = Window(columns, levels, [-1], seed=0), 1000
        for _ in range(40):
            tree = plan(window)
            for row in range(1, len(tree)):
                assert tree.tokens[row] in (-1, root + tree.depths[row])
            num_accepted = int(rng.integers(1, 5))
            for ngram in window.commit(root + tree.depths + 1, num_accepted):
                known = [(place, token) for place, token in enumerate(ngram) if token != -1]
                assert len({token - place for place, token in known}) == 1
            root += num_accepted


def test_the_smallest_window_yields_bigrams() -> None:
    window = Window(1, 1, [7], seed=0)
    tree = plan(window)
    assert tree.tokens.tolist() == [1, 7]
    assert window.commit(np.array([20, 21]), 1) == [(7, 21)]
    assert window.cells == [[21]]
    window.commit(np.array([20, 22]), 2)
    assert window.cells == [[7]]
