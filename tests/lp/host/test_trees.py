"""The library gives the same as the Python code for any tree."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from lp.host.library import library, python_alone
from lp.tree import TokenTree, TreeBuilder, chain
from lp.verification import verify


@pytest.fixture(autouse=True)
def native() -> ctypes.PyDLL:
    if (found := library()) is None:
        pytest.skip("there is no C++ compiler")
    return found


def any_tree(rng: random.Random) -> TokenTree:
    """A tree of few different tokens, so that several rows have the same path, as a draft and a window cell may."""
    builder = TreeBuilder(rng.randrange(3))
    for row in range(1, rng.randint(1, 40)):
        builder.add(rng.randrange(3), rng.randrange(max(0, row - 8), row))
    return builder.build()


def again(tree: TokenTree) -> TokenTree:
    """The same tree without what it remembers."""
    return TokenTree(tree.tokens, tree.parents, tree.depths)


@pytest.mark.parametrize("seed", range(100))
def test_the_same_rows_are_accepted_and_followed(seed: int) -> None:
    rng = random.Random(seed)
    tree = any_tree(rng)
    targets = np.array([rng.randint(-1, 2) for _ in range(len(tree))])
    for num_verified in (None, rng.randint(1, 40)):
        found = verify(tree, targets, num_verified)
        with python_alone():
            assert verify(tree, targets, num_verified) == found
    for tokens in (
        [rng.randrange(3) for _ in range(rng.randrange(20))],
        tree.tokens[tree.path(len(tree) - 1)].tolist(),
    ):
        path = tree.path_along(tokens)
        with python_alone():
            assert tree.path_along(tokens) == path


@pytest.mark.parametrize("seed", range(40))
def test_rows_see_the_same_rows(seed: int) -> None:
    rng = random.Random(seed)
    tree = any_tree(rng)
    for each in (tree, tree.under([1] * rng.randrange(20)), tree.take(sorted({0, *tree.path(len(tree) - 1)}))):
        seen, (starts, visible) = again(each).visibility, again(each).ancestors()
        with python_alone():
            expected = again(each)
            assert (seen == expected.visibility).all() and seen.dtype == expected.visibility.dtype
            assert starts.tolist() == expected.ancestors()[0].tolist()
            assert visible.tolist() == expected.ancestors()[1].tolist()
            assert (starts.dtype, visible.dtype) == tuple(array.dtype for array in expected.ancestors())


def test_trees_without_rows_have_no_path() -> None:
    assert chain([]).path_along([1, 2]) == [] and chain([1]).path_along([]) == []
