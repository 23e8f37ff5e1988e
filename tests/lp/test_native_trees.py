"""The library gives the same as the Python code for any tree."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp.platform.library import library, python_alone
from lp.tree import TokenTree, TreeBuilder, chain, verify


@pytest.fixture(autouse=True)
def native() -> ctypes.PyDLL:
    if (found := library()) is None:
        pytest.skip("there is no C++ compiler")
    return found


# Few different tokens, so that several rows have the same path, as a draft and a window cell may.
TOKENS = st.integers(0, 2)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    builder = TreeBuilder(draw(TOKENS))
    for row, (token, back) in enumerate(draw(st.lists(st.tuples(TOKENS, st.integers(1, 8)), max_size=38)), 1):
        builder.add(token, max(0, row - back))
    return builder.build()


def again(tree: TokenTree) -> TokenTree:
    """The same tree without what it remembers."""
    return TokenTree(tree.tokens, tree.parents, tree.depths)


@given(
    trees(), st.lists(st.integers(-1, 2), min_size=39, max_size=39), st.integers(1, 40), st.lists(TOKENS, max_size=19)
)
def test_the_same_rows_are_accepted_and_followed(
    tree: TokenTree, answers: list[int], num_verified: int, text: list[int]
) -> None:
    targets = np.array(answers[: len(tree)])
    for number in (None, num_verified):
        found = verify(tree, targets, number)
        with python_alone():
            assert verify(tree, targets, number) == found
    for tokens in (text, tree.tokens[tree.path(len(tree) - 1)].tolist()):
        path = tree.path_along(tokens)
        with python_alone():
            assert tree.path_along(tokens) == path


@given(trees(), st.integers(0, 19))
def test_rows_see_the_same_rows(tree: TokenTree, num_above: int) -> None:
    for each in (tree, tree.under([1] * num_above), tree.take(sorted({0, *tree.path(len(tree) - 1)}))):
        seen = again(each).visibility
        with python_alone():
            expected = again(each)
            assert (seen == expected.visibility).all() and seen.dtype == expected.visibility.dtype


def test_trees_without_rows_have_no_path() -> None:
    assert chain([]).path_along([1, 2]) == [] and chain([1]).path_along([]) == []
