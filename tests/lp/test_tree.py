"""Token trees: a row sees itself and its ancestors, also in parts of a tree and under a trunk."""

from __future__ import annotations

import numpy as np
import pytest

from lp.tree import PREFIX, TokenTree, TreeBuilder, chain, descend


def random_tree(rng: np.random.Generator, num_rows: int, vocab_size: int = 4) -> TokenTree:
    builder = TreeBuilder(int(rng.integers(vocab_size)))
    for row in range(1, num_rows):
        builder.add(int(rng.integers(vocab_size)), int(rng.integers(row)))
    return builder.build()


def ancestors(tree: TokenTree, row: int) -> set[int]:
    """The row and all its ancestors."""
    found = set()
    while row != PREFIX:
        found.add(row)
        row = int(tree.parents[row])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_itself_and_its_ancestors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(1, 40)))
    for row in range(len(tree)):
        expected = ancestors(tree, row)
        assert set(np.flatnonzero(tree.visibility[row])) == expected
        assert tree.path(row) == sorted(expected)
        assert tree.depths[row] == len(expected) - 1
        assert all(tree.parents[child] == row for child in tree.children[row])
    assert sum(len(children) for children in tree.children) == len(tree) - 1


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_a_closed_part_see_the_same(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    tree = random_tree(rng, 30)
    chosen = rng.choice(30, size=int(rng.integers(1, 10)), replace=False)
    rows = sorted({ancestor for row in chosen for ancestor in tree.path(int(row))})
    part = tree.take(rows)
    assert (part.tokens == tree.tokens[rows]).all()
    assert (part.depths == tree.depths[rows]).all()
    assert (part.visibility == tree.visibility[np.ix_(rows, rows)]).all()


def test_a_part_that_is_not_closed_is_refused() -> None:
    with pytest.raises(AssertionError, match="closed under ancestors"):
        chain([1, 2, 3]).take([0, 2])


@pytest.mark.parametrize("seed", range(5))
def test_a_trunk_is_put_above_the_root(seed: int) -> None:
    tree = random_tree(np.random.default_rng(seed), 12)
    grown = tree.under([7, 8, 9])
    assert len(grown) == 15
    for row in range(len(tree)):
        tokens = grown.tokens[grown.path(row + 3)].tolist()
        assert tokens == [7, 8, 9, *tree.tokens[tree.path(row)]]
        assert grown.depths[row + 3] == tree.depths[row] + 3
    assert tree.under([]) is tree


def test_rows_remain_greedy_under_a_trunk_that_is_not() -> None:
    builder = TreeBuilder(1)
    builder.add(5, builder.add(6, 0))
    greedy = builder.build(greedy_from=2).under([7, 8]).greedy
    assert greedy is not None and greedy.tolist() == [False, False, False, False, True]
    assert builder.build().under([7, 8]).greedy is None


def test_several_rows_can_be_added_at_once() -> None:
    one_by_one, at_once = TreeBuilder(1), TreeBuilder(1)
    for token, parent in [(5, 0), (6, 1), (7, 1)]:
        one_by_one.add(token, parent)
    assert at_once.extend([5, 6, 7], [0, 1, 1], [1, 2, 2]) == range(1, 4)
    for name in ("tokens", "parents", "depths"):
        assert getattr(at_once.build(), name).tolist() == getattr(one_by_one.build(), name).tolist()


def test_a_row_of_a_chain_sees_all_before_it() -> None:
    assert (chain([5, 6, 7]).visibility == np.tri(3, dtype=bool)).all()
    assert chain([5, 6, 7]).depths.tolist() == [0, 1, 2]
    assert len(chain([])) == 0


def test_descend_follows_rows_of_one_path_together() -> None:
    builder = TreeBuilder(1)
    first, second = builder.add(5, 0), builder.add(5, 0)
    builder.add(6, first)
    deeper = builder.add(7, second)
    deepest = builder.add(8, deeper)
    tree = builder.build()
    text = [5, 7, 8]
    levels = descend(tree, tree.children[0], lambda step, _: text[step] if step < len(text) else None)
    assert levels == [[first, second], [deeper], [deepest]]
